package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cucriu/cudackpt"
	"cucriu/hooks/image"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/imagedir"
)

// Clocks are the clocks of a job at the moment of its dump, as the job sees them.
type Clocks struct {
	Monotonic int64 `json:"monotonic_ns"`
	Boottime  int64 `json:"boottime_ns"`
}

// Info is what the supervisor knows of a checkpoint.
type Info struct {
	CreatedAt time.Time      `json:"created_at"`
	Pause     time.Duration  `json:"pause_ns"`                  // for which the job was stopped
	Duration  time.Duration  `json:"duration_ns"`               // of the whole dump
	Unchanged uint64         `json:"unchanged_bytes,omitempty"` // GPU memory that was not copied again
	Reason    string         `json:"reason,omitempty"`
	Command   string         `json:"command"` // its name
	RootPID   int            `json:"root_pid"`
	Clocks    Clocks         `json:"clocks"`
	Host      string         `json:"host"`
	Kernel    string         `json:"kernel"`
	Driver    string         `json:"driver,omitempty"`
	GPUs      []cudackpt.GPU `json:"gpus,omitempty"`
}

// File is a file of a checkpoint. That of GPU state has the checksum 0: its chunks have checksums.
type File = imagedir.File

// Checkpoint is a checkpoint in the store.
type Checkpoint struct {
	Name string // a number: each checkpoint has a higher one than those before it
	Dir  string // the image directory
	Info
	Generation uint64       // of the owner that made it
	Files      []File       // without checkpoint.json and the marks
	Bytes      int64        // of all files
	Shared     int64        // bytes in files that are also linked from elsewhere
	New        int64        // bytes that were written for it when it was made
	Pinned     bool         // it is never pruned
	Jobs       []string     // the directories of jobs that were started from it, and are there: it is not pruned either
	Verified   bool         // all of it was read and was as it was written
	Damage     *Damage      // that was found when it was read last; nil if none was
	GivenUp    string       // why it was given up for an older one; empty if it was not
	Trial      *image.Trial // a restore that was tried; nil if none was
	Warnings   []string
	Err        error // why it cannot be used; the rest is zero then, except Name and Dir

	sum    uint32       // of its record
	dumped *image.Image // of a dump; nil if it is a checkpoint of a long job
}

var checkpointName = regexp.MustCompile(`^[0-9]{6,18}$`)

// checkName refuses what is not the name of a checkpoint.
func (s *Store) checkName(name string) error {
	if !checkpointName.MatchString(name) {
		return fmt.Errorf("job directory %s: %.40q is not the name of a checkpoint", s.dir, name)
	}
	return nil
}

// Number is the number that the name is: each checkpoint has a higher one than those before it.
func (c Checkpoint) Number() uint64 { return number(c.Name) }

// nameOf returns the name of the checkpoint with a number.
func nameOf(number uint64) string { return fmt.Sprintf("%06d", number) }

// number returns the number of a checkpoint, or 0.
func number(name string) uint64 {
	n, _ := strconv.ParseUint(name, 10, 64)
	return n
}

// Checkpoints returns all checkpoints, the oldest first. One that cannot be used has its Err
// set.
func (s *Store) Checkpoints() ([]Checkpoint, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	var all []Checkpoint
	for _, name := range names {
		c, err := s.read(name)
		if errors.Is(err, errGone) {
			continue // removed meanwhile
		}
		if durable.HostRemedy(err) != "" {
			return nil, fmt.Errorf("checkpoint %s: %w", name, err)
		}
		if err != nil {
			c = Checkpoint{Name: name, Dir: s.checkpointDir(name), Err: fmt.Errorf("checkpoint %s: %w", name, err)}
		}
		all = append(all, c)
	}
	return all, nil
}

// Checkpoint returns the checkpoint with a name.
func (s *Store) Checkpoint(name string) (Checkpoint, error) {
	if err := s.checkName(name); err != nil {
		return Checkpoint{}, err
	}
	c, err := s.read(name)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint %s: %w", name, err)
	}
	return c, nil
}

// names returns the names of all checkpoints, the oldest first.
func (s *Store) names() ([]string, error) {
	entries, err := os.ReadDir(s.path(CheckpointsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoints: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if checkpointName.MatchString(entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(number(a), number(b)) })
	return names, nil
}

// nextName returns a name that no checkpoint has, and none that is being written or removed.
func (s *Store) nextName() (string, error) {
	entries, err := os.ReadDir(s.path(CheckpointsDir))
	if err != nil {
		return "", err
	}
	var last uint64
	for _, entry := range entries {
		last = max(last, number(strings.TrimPrefix(entry.Name(), partialPrefix)))
	}
	return nameOf(last + 1), nil
}

var errGone = errors.New("there is no such checkpoint")

// read reads the record and the marks of a checkpoint, and counts which files it shares.
func (s *Store) read(name string) (Checkpoint, error) {
	return readIn(s.checkpointDir(name), name)
}

// readIn reads the checkpoint of a directory.
func readIn(dir, name string) (Checkpoint, error) {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return Checkpoint{}, errGone
	}
	if err != nil {
		return Checkpoint{}, err
	}
	if !info.IsDir() {
		return Checkpoint{}, errors.New("it is not a directory")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Checkpoint{}, err
	}
	defer root.Close()
	r, sum, err := readRecord(root)
	if err != nil {
		return Checkpoint{}, err
	}
	c := Checkpoint{Name: name, Dir: dir, Info: r.Info, Generation: r.Generation, New: r.NewBytes, Files: r.Files, sum: sum}
	for _, f := range r.Files {
		c.Bytes += f.Bytes
		info, err := root.Lstat(f.Name)
		if err == nil && info.Sys().(*syscall.Stat_t).Nlink > 1 {
			c.Shared += f.Bytes
		}
	}
	c.readMarks(root)
	return c, nil
}
