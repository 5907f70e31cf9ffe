package image

import (
	"fmt"
	"regexp"
	"slices"
	"time"

	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
	"cucriu/internal/kit/version"
)

// OptionsName is the file name of the options of CRIU that an image was made with and
// that its restore needs, too.
const OptionsName = "cucriu-options.json"

var optionsKind = records.Kind[Options]{
	Name: OptionsName, What: "the list of criu options", Version: 1, Limit: 1 << 16, Check: (*Options).Validate,
	Remedy: "copy the image again from its source; if there is none, remove the file, and give the options of the dump (such as --tcp-established) to the restore",
}

// Options are options of CRIU, by its own names.
type Options struct {
	ShellJob       bool   `json:"shell_job,omitempty"`
	TCPEstablished bool   `json:"tcp_established,omitempty"`
	FileLocks      bool   `json:"file_locks,omitempty"`
	ExtUnixSk      bool   `json:"ext_unix_sk,omitempty"`
	GhostLimit     uint32 `json:"ghost_limit,omitempty"`  // bytes; 0 is CRIU's default. For the dump only
	LinkRemap      bool   `json:"-"`                      // for a dump by plain CRIU only
	NetworkLock    string `json:"network_lock,omitempty"` // "nftables" or "skip", or empty for CRIU's default
	// Watched are files that the job watches and that CRIU can find by their names alone. For the dump only.
	Watched []string `json:"-"`

	// The clocks of the job right after it was dumped, for one that is started from the image; 0 if they are not known.
	Monotonic time.Duration `json:"monotonic_ns,omitempty"`
	Boottime  time.Duration `json:"boottime_ns,omitempty"`

	// The version of cucriu that has made the image, and the newest one of its library in the job.
	Cucriu  string `json:"cucriu,omitempty"`
	Library int    `json:"library,omitempty"`

	// What the restore must find on its host.
	Terminal bool     `json:"terminal,omitempty"` // the job has one
	Sockets  []string `json:"sockets,omitempty"`  // UNIX sockets to which the job sends; @ stands for NUL
	Pipes    []Pipe   `json:"pipes,omitempty"`    // into which the job writes for processes outside of it
}

// Pipe is a pipe into which a job writes, and whose readers are not in the image. CRIU would
// restore it without readers, and the job would die at its next write. So the job gets the
// standard output of the restore in its place.
type Pipe struct {
	Name   string `json:"name"`             // as in /proc/PID/fd
	Stderr bool   `json:"stderr,omitempty"` // it was the job's standard error alone
}

// Arguments are the options as they stand on CRIU's command line.
func (o Options) Arguments() []string {
	var args []string
	for _, option := range []struct {
		set  bool
		text string
	}{
		{o.ShellJob, "--shell-job"},
		{o.TCPEstablished, "--tcp-established"},
		{o.FileLocks, "--file-locks"},
		{o.ExtUnixSk, "--ext-unix-sk"},
		{o.GhostLimit > 0, fmt.Sprintf("--ghost-limit %dM", o.GhostLimit>>20)},
		{o.LinkRemap, "--link-remap"},
		{o.NetworkLock != "", "--network-lock " + o.NetworkLock},
	} {
		if option.set {
			args = append(args, option.text)
		}
	}
	for _, path := range o.Watched {
		args = append(args, "--irmap-scan-path "+path)
	}
	return args
}

// Write records the options in an image directory.
func (o Options) Write(dir string) error {
	o.Cucriu = version.Version
	if err := optionsKind.Write(dir, o); err != nil {
		return fmt.Errorf("record criu's options: %w", err)
	}
	return nil
}

// MakerRemedy says which cucriu can restore the image.
func (o Options) MakerRemedy() string {
	if o.Cucriu == "" {
		return "use the version of cucriu that has made it"
	}
	return "use cucriu " + proc.Printable(o.Cucriu) + ", which has made it, or a newer one"
}

// ReadOptions reads the options of an image. They are empty if none are recorded.
func ReadOptions(dir string) (Options, error) { return optionsKind.ReadOr(dir, Options{}) }

var pipeName = regexp.MustCompile(`^pipe:\[\d+\]$`)

// Validate checks options that were read.
func (o *Options) Validate() error {
	if !slices.Contains([]string{"", "nftables", "skip"}, o.NetworkLock) {
		return fmt.Errorf("invalid network lock %q", o.NetworkLock)
	}
	for _, pipe := range o.Pipes {
		if !pipeName.MatchString(pipe.Name) {
			return fmt.Errorf("invalid pipe name %q", pipe.Name)
		}
	}
	return nil
}
