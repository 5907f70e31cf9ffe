// Package config reads the configuration file and the environment variables that override it.
// It knows which values are valid and where each came from. It must not know what the values
// do.
//
// The hook runs as root inside CRIU and loads the library that the configuration names. So a
// file that anybody but root, or the user that runs the program, could have written is refused.
package config

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// DefaultPath is the configuration file that is read when no other is named. It need not exist.
const DefaultPath = "/etc/cucriu/config.yaml"

// Config is a complete configuration. Start from [Default].
type Config struct {
	File string // the file that was read; empty if none was

	GPUs       GPUs
	Hosts      map[string]Host // by the names under which migrations know them
	Driver     Driver
	Lock       Lock
	Checkpoint Checkpoint
	Pages      Pages
	FastLane   FastLane
	// Checksums has the hook make and check those of criu's files. The commands always do.
	Checksums bool
	// ForkedChildren says what a dump does about children that CUDA processes forked.
	ForkedChildren ForkedChildren
	Restore        Restore
	Force          []string // names of the findings that are overridden
	Log            Log

	// RunDir holds what must outlive one hook: the sessions' journals, and criu's logs. It cannot be set in the file, because every part of one
	// installation must agree on it.
	RunDir string
}

// GPUs says which GPU takes the place of which at restore.
type GPUs struct {
	Map      []Rule
	Unmapped Policy
}

// Host says how jobs are migrated to another host.
type Host struct {
	Map []Rule // takes the place of that host's own map, if it is not empty
}

// MapFor returns the map for a migration to a host, which may be written as USER@HOST. It is nil
// if none is configured: then the map of that host's own configuration counts.
func (c Config) MapFor(host string) []Rule {
	return c.Hosts[host[strings.LastIndexByte(host, '@')+1:]].Map
}

// Driver says where the CUDA driver is found.
type Driver struct {
	Library string // soname, or absolute path, of libcuda
	Root    string // the directory under which dev/nvidiaN and proc/driver/nvidia are looked up
}

// Lock limits how long it may take to lock all CUDA processes of a tree: Timeout in all, in
// tries of length Try.
type Lock struct {
	Timeout, Try time.Duration
}

// Checkpoint limits how long GPU memory may be copied into the processes.
type Checkpoint struct {
	Timeout time.Duration
}

// Within bounds a context by the timeout.
func (c Checkpoint) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	return within(ctx, "checkpoint.timeout", c.Timeout)
}

// expiredError is the cause of a context that has ended by a setting.
type expiredError struct {
	setting string
	timeout time.Duration
}

func (e *expiredError) Error() string { return fmt.Sprintf("%s is %v: raise it", e.setting, e.timeout) }

func (e *expiredError) Unwrap() error { return context.DeadlineExceeded }

func within(ctx context.Context, setting string, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, timeout, &expiredError{setting, timeout})
}

// Pages says which program writes the GPU state into the image, once it is in the processes'
// memory.
type Pages string

const (
	// Fast is the fast lane: this program writes it, with all cores.
	Fast Pages = "fast"
	// ByCriu leaves it to criu, which writes one process at a time with one thread.
	ByCriu Pages = "criu"
)

// ForkedChildren says what a dump does about children that a CUDA process forked without exec,
// and that hold GPU devices which they cannot use.
type ForkedChildren string

const (
	// ReleaseChildren takes the devices from them.
	ReleaseChildren ForkedChildren = "release"
	// RefuseChildren refuses the dump.
	RefuseChildren ForkedChildren = "refuse"
)

// FastLane says how the fast lane works.
type FastLane struct {
	Compress Compression
	// Sync writes the GPU state to disk before it is dropped from the processes' memory, and the whole image
	// before criu ends the job.
	Sync bool
	// Prefault makes all cores prepare the memory that a checkpoint fills.
	Prefault bool
}

// Compression is how the fast lane compresses the GPU state.
type Compression string

// The kinds of compression.
const (
	Uncompressed Compression = "none"
	Zstd         Compression = "zstd"
	S2           Compression = "s2"
)

// Restore limits how long a restore may take, and says what becomes of a job if it fails.
type Restore struct {
	Timeout   time.Duration
	OnFailure OnFailure
}

// Within bounds a context by the timeout.
func (r Restore) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	return within(ctx, "restore.timeout", r.Timeout)
}

// OnFailure says what becomes of processes whose GPU state cannot be restored.
type OnFailure string

const (
	// KillOnFailure ends them: the image is unchanged, and a half-restored job must not run.
	KillOnFailure OnFailure = "kill"
	// LeaveOnFailure keeps them stopped, for inspection.
	LeaveOnFailure OnFailure = "leave"
)

// Log says what is logged, and where it is written besides CRIU's own log.
type Log struct {
	Level  slog.Level
	Format Format
	File   string // absolute path; empty for standard error
}

// Format is the format of the log's lines.
type Format string

// The formats of the log.
const (
	Text Format = "text"
	JSON Format = "json"
)

// Default returns the configuration of a host that has no configuration file.
func Default() Config {
	return Config{
		GPUs:           GPUs{Unmapped: FillUnmapped},
		Driver:         Driver{Library: "libcuda.so.1", Root: "/"},
		Lock:           Lock{Timeout: 10 * time.Second, Try: time.Second},
		Checkpoint:     Checkpoint{Timeout: 10 * time.Minute},
		Pages:          Fast,
		FastLane:       FastLane{Compress: Uncompressed, Sync: true, Prefault: true},
		ForkedChildren: ReleaseChildren,
		Restore:        Restore{Timeout: 10 * time.Minute, OnFailure: KillOnFailure},
		Log:            Log{Level: slog.LevelInfo, Format: Text},
		RunDir:         "/run/cucriu",
	}
}
