package prepare

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// The limits of what another host may say. A large training has a few hundred processes and a few
// thousand files.
const (
	maxProcesses   = 1 << 14
	maxNumbers     = 1 << 18 // threads, mostly
	maxPID         = 1 << 22 // the kernel's PID_MAX_LIMIT
	maxFiles       = 1 << 16
	maxDirectories = 1 << 14
	maxMounts      = 1 << 12
	maxGPUs        = 1 << 8
	maxSockets     = 1 << 16
	maxFeatures    = 1 << 10
	maxRules       = 1 << 8
	maxFindings    = 1 << 12
	maxBuildID     = 64      // bytes
	maxBytes       = 1 << 50 // of a file, or of the job's memory
)

// count is how many of something there are.
type count struct {
	what    string
	n, most int
}

func checkCounts(counts ...count) error {
	for _, c := range counts {
		if c.n > c.most {
			return fmt.Errorf("%d %s, but at most %d are allowed", c.n, c.what, c.most)
		}
	}
	return nil
}

// checkPath refuses a path that leads elsewhere, or that JSON would change.
func checkPath(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || len(path) > unix.PathMax || strings.ContainsRune(path, 0) || !utf8.ValidString(path) {
		return fmt.Errorf("%.200q is not a clean absolute path in UTF-8", path)
	}
	return nil
}

// Validate bounds the sizes and counts of a job that another host has described, and checks its
// paths. Nothing may be done with one that it refuses.
func (j *Job) Validate() error {
	gpus := 0
	for _, p := range j.Processes {
		gpus = max(gpus, len(p.GPUs))
	}
	err := checkCounts(
		count{"processes", len(j.Processes), maxProcesses}, count{"GPUs", gpus, maxGPUs}, count{"numbers", len(j.Numbers), maxNumbers},
		count{"files", len(j.Files), maxFiles}, count{"directories", len(j.Directories) + len(j.SocketDirectories), maxDirectories}, count{"mounts", len(j.Mounts), maxMounts},
		count{"sockets", len(j.Connections) + len(j.Listening) + len(j.UNIXSockets) + len(j.Options.Sockets) + len(j.Options.Pipes), maxSockets},
		count{"features", len(j.Features) + len(j.Host.CPU.Features), maxFeatures}, count{"rules of the map", len(j.Map), maxRules})
	if err != nil {
		return err
	}
	if len(j.Processes) == 0 {
		return errors.New("no processes")
	}
	if err := cmp.Or(j.checkSizes(), j.checkPaths(), j.Options.Validate()); err != nil {
		return err
	}
	for _, rule := range j.Map {
		if err := rule.Validate(); err != nil {
			return fmt.Errorf("%v: %w", rule, err)
		}
	}
	if manifest := j.manifest(); manifest != nil {
		return manifest.Validate()
	}
	return nil
}

func (j *Job) checkSizes() error {
	sum := uint64(0)
	add := func(size uint64) error {
		if size > maxBytes || sum+size > maxBytes {
			return fmt.Errorf("more than %d bytes of memory", uint64(maxBytes))
		}
		sum += size
		return nil
	}
	err := add(j.SharedBytes)
	for _, p := range j.Processes {
		err = cmp.Or(err, add(p.PrivateBytes))
		for _, size := range p.MemoryBytes {
			err = cmp.Or(err, add(size))
		}
	}
	for _, f := range j.Files {
		if f.Size < 0 || f.Size > maxBytes {
			err = cmp.Or(err, fmt.Errorf("the file %q has %d bytes", f.Path, f.Size))
		}
	}
	return err
}

func (j *Job) checkPaths() (err error) {
	for _, f := range j.Files {
		err = cmp.Or(err, checkPath(f.Path))
	}
	for _, d := range j.SocketDirectories {
		err = cmp.Or(err, checkPath(d.Path))
	}
	for _, s := range j.UNIXSockets {
		err = cmp.Or(err, checkPath(s.Path))
	}
	for _, m := range j.Mounts {
		err = cmp.Or(err, checkPath(m.Path))
	}
	for _, path := range j.Directories {
		err = cmp.Or(err, checkPath(path))
	}
	if j.Cgroup != "" {
		err = cmp.Or(err, checkPath(j.Cgroup))
	}
	return err
}
