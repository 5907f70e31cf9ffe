package store

import (
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"cucriu/cudackpt"
	"cucriu/internal/image"
	"cucriu/internal/proc"
)

// Clocks are the clocks of a job at the moment of its dump, as the job sees them.
type Clocks struct {
	Monotonic int64 `json:"monotonic_ns"`
	Boottime  int64 `json:"boottime_ns"`
}

// Info is what the supervisor knows of a checkpoint.
type Info struct {
	CreatedAt time.Time      `json:"created_at"`
	Pause     time.Duration  `json:"pause_ns"`    // how long the job stood still
	Duration  time.Duration  `json:"duration_ns"` // of the whole dump
	Reason    string         `json:"reason,omitempty"`
	Command   string         `json:"command"` // its name
	RootPID   int            `json:"root_pid"`
	Clocks    Clocks         `json:"clocks"`
	Host      string         `json:"host"`
	Kernel    string         `json:"kernel"`
	Driver    string         `json:"driver,omitempty"`
	GPUs      []cudackpt.GPU `json:"gpus,omitempty"`
}

// File is a file of a checkpoint.
type File struct {
	Name   string `json:"name"` // in the checkpoint's directory, with slashes
	Bytes  int64  `json:"bytes"`
	CRC32C uint32 `json:"crc32c"`
}

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
	Verified   bool         // all of it was read and was as it was written
	GivenUp    string       // why it was given up for an older one; empty if it was not
	Trial      *image.Trial // a restore that was tried; nil if none was
	Warnings   []string
	Err        error // why it cannot be used; the rest is zero then, except Name and Dir

	sum uint32 // of its record
}

const (
	maxGPUs     = 1 << 10
	maxFiles    = 1 << 20
	maxText     = 4096 // bytes
	maxName     = 1024 // bytes
	maxDuration = 366 * 24 * time.Hour
)

var checkpointName = regexp.MustCompile(`^[0-9]{6,18}$`)

// nameOf returns the name of the checkpoint with a number.
func nameOf(number uint64) string { return fmt.Sprintf("%06d", number) }

// Validate refuses what no supervisor can have handed in.
func (i Info) Validate() error {
	for _, t := range []struct{ what, text string }{
		{"reason", i.Reason},
		{"command", i.Command},
		{"host", i.Host},
		{"kernel", i.Kernel},
		{"driver", i.Driver},
	} {
		if !isPrintable(t.text) {
			return fmt.Errorf("the %s is %q", t.what, proc.Printable(t.text[:min(len(t.text), 80)]))
		}
	}
	switch {
	case i.CreatedAt.Year() < 1970 || i.CreatedAt.Year() > 9999:
		return fmt.Errorf("it was made in the year %d", i.CreatedAt.Year())
	case i.Pause < 0 || i.Pause > maxDuration || i.Duration < 0 || i.Duration > maxDuration:
		return fmt.Errorf("the pause is %v, and the dump took %v", i.Pause, i.Duration)
	case i.RootPID <= 0 || i.RootPID > 1<<22:
		return fmt.Errorf("the root has pid %d", i.RootPID)
	case i.Clocks.Monotonic < 0 || i.Clocks.Boottime < 0:
		return fmt.Errorf("the clocks are %+v", i.Clocks)
	case len(i.GPUs) > maxGPUs:
		return fmt.Errorf("it has %d GPUs", len(i.GPUs))
	}
	seen := make(map[cudackpt.UUID]bool)
	for _, gpu := range i.GPUs {
		if gpu.UUID == (cudackpt.UUID{}) || seen[gpu.UUID] {
			return fmt.Errorf("GPU %v is named twice or has no UUID", gpu.UUID)
		}
		seen[gpu.UUID] = true
		if !isPrintable(gpu.Model) || !isPrintable(gpu.PCIBusID) || gpu.Minor < 0 {
			return fmt.Errorf("GPU %v is a %q at %q", gpu.UUID, proc.Printable(gpu.Model), proc.Printable(gpu.PCIBusID))
		}
	}
	return nil
}

// isPrintable reports whether text is safe to show on terminals and in logs.
func isPrintable(text string) bool { return len(text) <= maxText && text == proc.Printable(text) }

// isFileName reports whether a file of a checkpoint may have this name. It leads nowhere but
// into the checkpoint's directory, and is not that of a file which the store writes there.
func isFileName(name string) bool {
	return name != "" && name != "." && len(name) <= maxName && isPrintable(name) && path.Clean(name) == name && filepath.IsLocal(name) &&
		!strings.ContainsRune(name, '\\') && !isOwnFile(name)
}

// isOwnFile reports whether the store itself writes a file with this name.
func isOwnFile(name string) bool {
	return name == recordName || name == verifiedName || name == pinnedName || name == givenUpName || name == trialName
}
