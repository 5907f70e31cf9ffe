package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cucriu/criuutil/pages"
	"cucriu/hooks"
	"cucriu/hooks/jobs"
	"cucriu/hooks/jobs/job"
	"cucriu/internal/logging"
	"cucriu/internal/units"
)

// longFlags are the flags of a long job.
type longFlags struct {
	dir, name, criu string
	user, stage     string
	metrics         string
	filesLimit      string
	maxBytes        string
	notSaved        []string
	every, grace    time.Duration
	maxPause        time.Duration
	overhead        float64
	keep            int
	compress        pages.Codec
	settings        []string
	noSettings      []string
	takeover        bool
	privateTmp      bool
	stdin, tty      bool
	adopt           int
	preempt         []string
	probe           bool
	requeueStatus   int
	movedStatus     int
}

func (f *longFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var((*folderValue)(&f.dir), "dir", "holds the checkpoints of the job and its output; made if it is missing")
	flags.StringVar(&f.name, "name", "", "how the job is called (default: the last part of DIR)")
	flags.StringVar(&f.user, "user", "", "whose the job is, by name or number (default: root's)")
	flags.StringVar(&f.filesLimit, "files-limit", "", "how much content of files that the job has open for writing belongs to a checkpoint, such as 512M (default 1G)")
	flags.BoolVar(&f.privateTmp, "private-tmp", false, "a /tmp of the job's own, in memory, which belongs to its checkpoints")
	flags.StringArrayVar(&f.notSaved, "not-saved", nil, "a file of the job that is left as it is when the job goes on from a checkpoint; may be repeated")
	flags.DurationVar(&f.every, "every", 30*time.Minute, "time between checkpoints; 0 is none on a schedule")
	flags.Var((*percentValue)(&f.overhead), "overhead", "make checkpoints so often that the job stands still for this part of its time, such as 1%; --every counts until their cost is known")
	flags.DurationVar(&f.maxPause, "max-pause", 0, "leave out a checkpoint for which the job would probably stand still for longer; 0 is no limit")
	flags.StringVar(&f.stage, "stage", "", "where an image is written while the job stands still: a directory, memory, or disk (in DIR); default: memory if it fits, else disk")
	flags.StringArrayVar(&f.settings, "setting", nil, "add a setting to the job's environment that may cost speed; may be repeated: "+settingNames(true))
	flags.StringArrayVar(&f.noSettings, "no-setting", nil, "leave out a setting that costs no speed; may be repeated: "+settingNames(false))
	flags.IntVar(&f.keep, "keep", 3, "how many checkpoints to keep")
	flags.StringVar(&f.maxBytes, "max-bytes", "", "how much room the checkpoints may take together, such as 500G; the newest verified one and pinned ones stay")
	choose(cmd, &f.compress, "compress", "how GPU memory is compressed on its way to DIR, while the job runs: none, s2 (fast) or zstd (smaller)",
		word[pages.Codec]{"none", 0}, word[pages.Codec]{"s2", pages.S2}, word[pages.Codec]{"zstd", pages.Zstd})
	choose(cmd, &f.probe, "probe", "try whether the first checkpoint can be restored, and others once there are new kinds of processes or files in the job: beside it, in a sandbox, without the GPUs: auto or off",
		word[bool]{"auto", true}, word[bool]{"off", false})
	flags.BoolVar(&f.takeover, "takeover", false, "take the job over from a host that has not given it back, because that host is known to be down")
	flags.StringSliceVar(&f.preempt, "preempt", []string{"TERM"}, "the signals after which the job is to leave this host, such as TERM,USR1")
	flags.DurationVar(&f.grace, "grace", 0, "how long that may take, with the last checkpoint; 0 is as long as it takes")
	flags.IntVar(&f.requeueStatus, "requeue-status", 75, "the exit status then")
	flags.IntVar(&f.movedStatus, "moved-status", 0, "the exit status once the job has moved to another host (cucriu migrate --job)")
	flags.IntVar(&f.adopt, "adopt", 0, "take a job under care that runs already: the pid of its first process")
	flags.BoolVar(&f.stdin, "stdin", false, "the job reads our standard input; what it has read since a checkpoint it is given again when it goes on from there")
	flags.BoolVar(&f.tty, "tty", false, "the job has a terminal of its own, joined to ours")
	flags.StringVar(&f.criu, "criu", os.Getenv("CUCRIU_CRIU"), "the criu to run (default: $CUCRIU_CRIU, else the system's)")
	flags.StringVar(&f.metrics, "metrics", "", "a file for Prometheus, which its node exporter reads (name it *.prom)")
	_ = cmd.MarkFlagDirname("dir")
}

func (f *longFlags) options(args []string) (jobs.Options, error) {
	o := jobs.Options{
		Dir: f.dir, Name: f.name, Command: args, Adopt: f.adopt, Every: f.every, Keep: f.keep, Takeover: f.takeover,
		User: f.user, NotSaved: f.notSaved, Probe: f.probe, PrivateTmp: f.privateTmp,
		Overhead: f.overhead, MaxPause: f.maxPause, Stage: f.stage, Settings: f.settings, NoSettings: f.noSettings,
		Grace: f.grace, RequeueStatus: f.requeueStatus, MovedStatus: f.movedStatus, Criu: f.criu, Metrics: f.metrics, Output: os.Stdout, Messages: logging.Stderr(),
	}
	if f.stdin {
		o.Stdin = os.Stdin
	}
	if f.tty {
		o.Terminal = os.Stdin
	}
	switch {
	case f.adopt < 0:
		return o, errors.New("--adopt: a pid is a positive number")
	case f.adopt != 0 && len(args) > 0:
		return o, errors.New("--adopt: the job runs already, so leave out the command")
	case f.adopt != 0 && (f.stdin || f.tty || f.user != "" || f.privateTmp || len(f.settings)+len(f.noSettings) > 0):
		return o, errors.New("--adopt: --stdin, --tty, --user, --private-tmp, --setting and --no-setting are for a job that is started")
	case f.stdin && f.tty:
		return o, errors.New("--stdin and --tty: one of them; what is typed is the input of a job with a terminal")
	case f.every < 0 || f.grace < 0 || f.maxPause < 0:
		return o, errors.New("a time is not negative")
	case f.every > 0 && f.every < time.Second:
		return o, fmt.Errorf("--every %v: at least 1s", f.every)
	case f.stage != "" && f.stage != jobs.StageMemory && f.stage != jobs.StageDisk && !filepath.IsAbs(f.stage):
		return o, fmt.Errorf("--stage %s: memory, disk, or an absolute path", f.stage)
	case f.metrics != "" && existing(filepath.Dir(f.metrics)) == "":
		return o, fmt.Errorf("--metrics %s: there is no such folder", f.metrics)
	case f.keep < 1:
		return o, fmt.Errorf("--keep %d: at least 1", f.keep)
	case f.requeueStatus < 0 || f.requeueStatus > 255:
		return o, fmt.Errorf("--requeue-status %d: 0 to 255", f.requeueStatus)
	case f.movedStatus < 0 || f.movedStatus > 255:
		return o, fmt.Errorf("--moved-status %d: 0 to 255", f.movedStatus)
	}
	for _, size := range []struct {
		flag, text string
		bytes      *int64
	}{{"files-limit", f.filesLimit, &o.FilesLimit}, {"max-bytes", f.maxBytes, &o.MaxBytes}} {
		if size.text == "" {
			continue
		}
		var err error
		if *size.bytes, err = units.ParseSize(size.text); err != nil {
			return o, fmt.Errorf("--%s: %w", size.flag, err)
		}
	}
	o.Compress = f.compress
	for _, path := range f.notSaved {
		if !filepath.IsAbs(path) {
			return o, fmt.Errorf("--not-saved %s: an absolute path", path)
		}
	}
	for _, name := range f.preempt {
		sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(name)), "SIG"))
		switch sig {
		case unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGINT, unix.SIGHUP:
			o.Preempt = append(o.Preempt, sig)
		default:
			return o, fmt.Errorf("--preempt %s: TERM, USR1, USR2, INT or HUP", name)
		}
	}
	return o, nil
}

// runLong runs a long job, and returns its exit status as an error.
func runLong(cmd *cobra.Command, hook *hooks.Hook, long longFlags, args []string) error {
	options, err := long.options(args)
	if err != nil {
		return usageError{err}
	}
	options.Flags = givenFlags(cmd.Flags())
	if err := requireRoot(cmd); err != nil {
		return runError{err}
	}
	signals, err := job.TakeSignals()
	if err != nil {
		return runError{err}
	}
	status, err := jobs.Run(cmd.Context(), hook, options, signals)
	if notStarted := new(job.NotStartedError); err != nil && !errors.As(err, &notStarted) {
		return runError{err}
	}
	if err == nil && status != 0 {
		return exitStatus(status)
	}
	return err
}

// settingNames lists the settings that cost speed, or those that do not.
func settingNames(costs bool) string {
	var names []string
	for _, s := range jobs.Settings() {
		if s.Costs == costs {
			names = append(names, s.Name)
		}
	}
	return strings.Join(names, ", ")
}
