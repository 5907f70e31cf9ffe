package prepare

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
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
	maxPath        = unix.PathMax // bytes
	maxText        = 1 << 10      // bytes of a name
	maxBuildID     = 64           // bytes
	maxBytes       = 1 << 50      // of a file, or of a process's memory
)

// checks collects the first error.
type checks struct{ err error }

func (c *checks) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *checks) count(what string, n, most int) bool {
	if n > most {
		c.fail("%d %s, and at most %d are possible", n, what, most)
	}
	return c.err == nil
}

// text refuses what would break a line, or control a terminal.
func (c *checks) text(what, text string) {
	c.textOf(what, text, maxText)
}

func (c *checks) textOf(what, text string, most int) {
	switch {
	case len(text) > most:
		c.fail("%s has %d bytes, and at most %d are possible", what, len(text), most)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unprintable):
		c.fail("%s is %q, which cannot be printed", what, text)
	}
}

// unprintable is true for control characters, and for those that change the direction of a line.
func unprintable(r rune) bool { return !unicode.IsPrint(r) }

func (c *checks) path(what, path string) {
	c.textOf(what, path, maxPath)
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		c.fail("%s is %q, which is not a clean absolute path", what, path)
	}
}

func (c *checks) pid(what string, pid int) {
	if pid <= 0 || pid > maxPID {
		c.fail("%s is %d, which is no pid", what, pid)
	}
}

func (c *checks) size(what string, size uint64) {
	if size > maxBytes {
		c.fail("%s has %d bytes", what, size)
	}
}

func (c *checks) address(what string, address netip.AddrPort) {
	if !address.IsValid() || address.Addr().Zone() != "" {
		c.fail("%s is %q", what, address.String())
	}
}

// Validate checks a job that another host has described. Nothing may be done with one that it
// refuses.
func (j *Job) Validate() error {
	if j.Version != Version {
		return fmt.Errorf("the description of the job has version %d, and this cucriu reads version %d: use the same cucriu on both hosts", j.Version, Version)
	}
	c := new(checks)
	j.Host.validate(c)
	j.validateProcesses(c)
	if c.count("numbers", len(j.Numbers), maxNumbers) {
		for _, number := range j.Numbers {
			c.pid("a number", number)
		}
	}
	c.size("shared memory", j.SharedBytes)
	j.validateFiles(c)
	if j.Cgroup != "" {
		c.path("the control group", j.Cgroup)
	}
	j.validateSockets(c)
	if c.count("features of criu", len(j.Features), maxFeatures) {
		for _, feature := range j.Features {
			c.text("a feature of criu", feature)
			if !featureName.MatchString(feature) {
				c.fail("a feature of criu is %q", feature)
			}
		}
	}
	if c.count("rules of the map", len(j.Map), maxRules) {
		for _, rule := range j.Map {
			c.text("a rule of the map", rule.From.PCI+rule.To.PCI)
			if err := rule.Validate(); err != nil {
				c.fail("%v: %w", rule, err)
			}
		}
	}
	return c.err
}

var featureName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

func (h *Host) validate(c *checks) {
	for what, text := range map[string]string{
		"the host": h.Name, "the boot id": h.BootID, "the architecture": h.Architecture, "the kernel": h.Kernel, "the version of criu": h.Criu, "the processor": h.CPU.Model,
	} {
		c.text(what, text)
	}
	if c.count("features of the processor", len(h.CPU.Features), maxFeatures) {
		for _, feature := range h.CPU.Features {
			c.text("a feature of the processor", feature)
		}
	}
	if h.Monotonic < 0 {
		c.fail("the monotonic clock is at %v", h.Monotonic)
	}
}

func (j *Job) validateProcesses(c *checks) {
	if len(j.Processes) == 0 {
		c.fail("no processes")
	}
	if !c.count("processes", len(j.Processes), maxProcesses) {
		return
	}
	if j.Processes[0].PID != j.RootPID {
		c.fail("the root has pid %d, and the first process %d", j.RootPID, j.Processes[0].PID)
	}
	seen, gpus := make(map[int]bool), make(map[cudackpt.UUID]bool)
	var sum uint64
	for _, p := range j.Processes {
		c.pid("a process", p.PID)
		if seen[p.PID] {
			c.fail("process %d is named twice", p.PID)
		}
		seen[p.PID] = true
		c.text("the name of a process", p.Name)
		c.text("a user", p.User)
		for _, gpu := range p.GPUs {
			c.text("a GPU", gpu.Model)
			c.text("a GPU", gpu.PCIBusID)
			gpus[gpu.UUID] = true
		}
		c.count("GPUs", len(gpus), maxGPUs)
		for _, size := range p.MemoryBytes {
			c.size("GPU memory", size)
			sum += size
		}
		c.size("a process", p.PrivateBytes)
		sum += p.PrivateBytes
		c.size("the job", sum) // before it can overflow
		if p.Threads < 1 || p.Threads > maxPID || p.UID < 0 || p.UID > 1<<32-1 || p.RealUID < 0 || p.RealUID > 1<<32-1 {
			c.fail("process %d has %d threads and user %d", p.PID, p.Threads, p.UID)
		}
		if len(p.GPUs) == 0 && len(p.MemoryBytes) > 0 {
			c.fail("process %d holds GPU memory and sees no GPU", p.PID)
		}
	}
	manifest := j.manifest()
	switch {
	case manifest == nil && j.DriverVersion != "":
		c.fail("a driver, and no process that uses it")
	case manifest != nil && c.err == nil:
		c.text("the driver", j.DriverVersion)
		if err := manifest.Validate(); err != nil {
			c.fail("GPUs: %w", err)
		}
	}
}

func (j *Job) validateFiles(c *checks) {
	if !c.count("files", len(j.Files), maxFiles) || !c.count("directories", len(j.Directories), maxDirectories) || !c.count("mounts", len(j.Mounts), maxMounts) {
		return
	}
	seen := make(map[string]bool)
	for _, f := range j.Files {
		c.path("a file", f.Path)
		c.pid("the process of a file", f.PID)
		if seen[f.Path] {
			c.fail("the file %q is named twice", f.Path)
		}
		seen[f.Path] = true
		if f.Size < 0 || f.Size > maxBytes {
			c.fail("the file %q has %d bytes", f.Path, f.Size)
		}
		if kind := f.Mode & unix.S_IFMT; f.Mode > 0xffff || f.Pipe != (kind == unix.S_IFIFO) || !f.Pipe && kind != unix.S_IFREG {
			c.fail("the file %q has the mode %o", f.Path, f.Mode)
		}
		c.text("a build id", f.BuildID)
		if id, err := hex.DecodeString(f.BuildID); err != nil || len(id) > maxBuildID {
			c.fail("the file %q has the build id %q", f.Path, f.BuildID)
		}
		if f.UID < 0 || f.UID > 1<<32-1 || f.GID < 0 || f.GID > 1<<32-1 {
			c.fail("the file %q has the owner %d:%d", f.Path, f.UID, f.GID)
		}
		c.text("a file system", f.Identity.FileSystem)
		c.textOf("the source of a mount", f.Identity.Source, maxPath)
	}
	if c.count("directories of sockets", len(j.SocketDirectories), maxDirectories) {
		for _, d := range j.SocketDirectories {
			c.path("a directory", d.Path)
			c.pid("a socket", d.PID)
			if d.Mode > 0o7777 || d.UID < 0 || d.UID > 1<<32-1 || d.GID < 0 || d.GID > 1<<32-1 {
				c.fail("the directory %q has the mode %o and the owner %d:%d", d.Path, d.Mode, d.UID, d.GID)
			}
		}
	}
	for _, path := range j.Directories {
		c.path("a directory", path)
	}
	for _, m := range j.Mounts {
		c.path("a mount", m.Path)
		c.text("a file system", m.FileSystem)
		c.textOf("the source of a mount", m.Source, maxPath)
	}
}

func (j *Job) validateSockets(c *checks) {
	if !c.count("TCP sockets", len(j.Connections)+len(j.Listening), maxSockets) {
		return
	}
	for _, s := range j.Connections {
		c.pid("the process of a connection", s.PID)
		c.address("an end of a connection", s.Local)
		c.address("an end of a connection", s.Remote)
	}
	for _, s := range j.Listening {
		c.pid("the process of a listening socket", s.PID)
		c.address("a listening socket", s.Local)
	}
	c.text("the network lock", j.Options.NetworkLock)
	if c.count("sockets", len(j.Options.Sockets)+len(j.Options.Pipes), maxSockets) {
		for _, name := range j.Options.Sockets {
			c.textOf("a UNIX socket", name, maxPath)
		}
		for _, pipe := range j.Options.Pipes {
			c.text("a pipe", pipe.Name)
		}
	}
	if c.err == nil {
		c.err = j.Options.Validate()
	}
}
