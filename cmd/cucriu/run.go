package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs"
	"cucriu/internal/jobs/job"
	"cucriu/internal/jobs/ready"
	"cucriu/internal/jobs/relay"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/logging"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/units"
)

func runCommand() *cobra.Command {
	var noCheckpoints bool
	var pidFile string
	var long jobs.Options
	var check func(args []string) error
	cmd := &cobra.Command{
		Use:   "run --dir DIR [flags] [--] COMMAND [ARG...]",
		Short: "Run a long job: start it, checkpoint it, resume from the newest checkpoint",
		Long: `Run a long job. If DIR holds no checkpoint of it, COMMAND is started; otherwise the
job resumes from the newest complete checkpoint. So the same command line serves the
first start and every start after a failure, a preemption or a reboot.

DIR remembers the command and the options, so cucriu run --dir DIR is enough later. An
option that is given then replaces the remembered one, and is remembered; give its
default to be rid of it. A command line with COMMAND is complete: only its options
apply, and they are remembered. --takeover, --adopt and --criu never are.

The job runs in pid, mount and time namespaces of its own: its pids are always free
and its clocks do not jump. If cucriu run is killed, the job keeps running, and the
same command line resumes supervising it. The job's output is kept in DIR/output.log,
and shown here.

A checkpoint is made every --every. The job is paused only until its memory has been
copied. On a --preempt signal (SIGTERM) a last checkpoint is made, the job is ended,
and the exit status is --requeue-status; a second signal, 2 s later or more, ends it
at once. Other signals are forwarded: to the whole process group those that a terminal
sends there (Ctrl-C, Ctrl-\), to the first process SIGUSR1, SIGUSR2 and SIGALRM. Ctrl-Z
stops cucriu run, and the job keeps running. A job that needs a terminal runs in tmux:
cucriu run --dir DIR --wait-all -- tmux -S SOCKET new -d COMMAND

For a server, --every never --preempt none: SIGTERM is forwarded as well, nothing is
dumped, and the exit status is the server's. If that is 0 after SIGTERM or SIGINT, the
job is not considered finished, and the same command starts or resumes it. With
--restart, a job that has ended is started again, unless it was asked to end: by a
forwarded SIGTERM, SIGINT or SIGQUIT, cucriu jobs stop or a preemption.

criu cannot dump an io_uring. Some programs open one if they can: torchrun and
PyTorch's TCPStore (through libuv), uvloop, Node.js. The job runs under a seccomp
filter that makes io_uring_setup fail with ENOSYS, and these programs do without.

The exit status is the job's, and 128+n if signal n has ended it. It is 127 if COMMAND
was not found, 126 if it cannot be executed, and 125 if cucriu itself has failed.

With --image a new job is started from a checkpoint of another long job, which is not
touched and may be running: so a server that is slow to load can be started many times.
An image of cucriu dump serves, too, while what its job was writing is unchanged.
The new job has pids, a network and checkpoints of its own, and copies of the directories
in which the image was writing; it shares all other files with the host.

With --adopt PID a job that is already running is adopted. It stays where it was
started until it is resumed from a checkpoint.

With --no-checkpoints the job is only started so that cucriu dump -t PID can dump it:
under that filter, in a session of its own, with the standard streams of cucriu run,
and not in namespaces. The first line on stderr names its pid; so does --pidfile.
Without CAP_SYS_ADMIN, set-user-id programs such as sudo gain no rights then.`,
		Example: "  cucriu run --dir /var/lib/jobs/train --every 30m -- torchrun --nproc-per-node 2 train.py\n" +
			"  cucriu run --dir /var/lib/jobs/train --keep 5  # resume it, and keep more checkpoints from now on\n" +
			"  cucriu run --dir /var/lib/jobs/a --image /var/lib/jobs/server --publish 8001:8000\n" +
			"  cucriu run --dir /shared/jobs/$SLURM_JOB_ID --takeover --grace 60s --requeue-status 85 -- python train.py\n" +
			"  cucriu run --no-checkpoints --pidfile job.pid python train.py &\n  cucriu dump -t $(cat job.pid) -D /var/lib/images/job1",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && long.Dir == "" || len(args) > 0 && args[0] == "" {
				return errors.New("name the command to run")
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault // files
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			late := misplaced(cmd, args)
			switch {
			case !noCheckpoints && long.Dir == "" && (slices.Contains(late, "--dir") || slices.Contains(late, "--no-checkpoints")):
				return usageError{fmt.Errorf("%s stands after COMMAND, and so belongs to it: put cucriu's own options before COMMAND", strings.Join(late, ", "))}
			case noCheckpoints && long.Dir != "":
				return usageError{errors.New("--no-checkpoints and --dir cannot be combined")}
			case !noCheckpoints && long.Dir == "":
				return usageError{errors.New("specify the job directory with --dir, or run without checkpoints with --no-checkpoints (cucriu dump can then dump the job)")}
			case pidFile != "" && !noCheckpoints:
				return usageError{errors.New("--pidfile can be used only with --no-checkpoints; cucriu jobs show has the pid of a long job")}
			}
			var idle []string
			cmd.Flags().Visit(func(flag *pflag.Flag) {
				if !slices.Contains([]string{"no-checkpoints", "pidfile", "quiet"}, flag.Name) {
					idle = append(idle, "--"+flag.Name)
				}
			})
			if noCheckpoints && len(idle) > 0 {
				return usageError{fmt.Errorf("%s has no effect with --no-checkpoints: leave it out, or use --dir", strings.Join(idle, ", "))}
			}
			if len(late) > 0 {
				say(fmt.Sprintf("warning: after COMMAND, %s is passed to it; options of cucriu run go before COMMAND (with -- before COMMAND, this is not said)", strings.Join(late, ", ")))
			}
			hook, err := newHook()
			if err != nil {
				return err
			}
			if noCheckpoints {
				inform := say
				if isSet(cmd, "quiet") {
					inform = func(string) {}
				}
				return runJob(cmd.Context(), hook.Config.RunDir, args, pidFile, inform)
			}
			if err := check(args); errors.As(err, new(runError)) {
				return err
			} else if err != nil {
				return usageError{err}
			}
			return runLong(cmd, hook, long)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows COMMAND is its own
	flags.BoolVar(&noCheckpoints, "no-checkpoints", false, "make no checkpoints: only start the job")
	pidFileFlag(cmd, &pidFile, "with --no-checkpoints: write the pid of the job to this file")
	check = addLongFlags(cmd, &long)
	return cmd
}

// misplaced returns the options of the job's command that look like cucriu run's own; none if the user has said by --
// where the command begins.
func misplaced(cmd *cobra.Command, args []string) (options []string) {
	if cmd.ArgsLenAtDash() >= 0 {
		return nil
	}
	for _, arg := range args {
		option, _, _ := strings.Cut(arg, "=")
		if name, is := strings.CutPrefix(option, "--"); is && cmd.Flags().Lookup(name) != nil {
			options = append(options, option)
		}
	}
	return options
}

// runJob runs a job until it ends, and returns its exit status as an error.
func runJob(ctx context.Context, runDir string, command []string, pidFile string, inform func(string)) error {
	signals, err := job.TakeSignals()
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	begun := time.Now()
	started, err := job.Start(job.Command{Args: command, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
	if err != nil {
		return err
	}
	go signals.PassTo(started)
	text := fmt.Sprintf("the job has pid %d: cucriu dump -t %d -D DIR", started.PID, started.PID)
	if wouldGrow(os.Stderr) {
		text += " (a dump that ends it is not reported in this file, which must keep its size; with 2>> it is)"
	}
	inform(text)
	writePID(pidFile, started.PID)
	status, err := started.Wait()
	if err != nil {
		return err
	}
	if status == exitSignal+int(unix.SIGKILL) && !wouldGrow(os.Stderr) {
		sayWhyKilled(runDir, started.PID, begun)
	}
	if status != 0 {
		return exitStatus(status)
	}
	return nil
}

// wouldGrow reports whether a file that the job has open, too, would get another size by what is
// written to it: criu restores the job only if it has its size.
func wouldGrow(f *os.File) bool {
	info, err := f.Stat()
	flags, flagsErr := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	return err == nil && flagsErr == nil && info.Mode().IsRegular() && flags&unix.O_APPEND == 0
}

// sayWhyKilled says whether a dump has ended the job.
func sayWhyKilled(runDir string, pid int, begun time.Time) {
	sessions, _ := checkpoint.Sessions(runDir) // those of a job that does not use CUDA are not there
	for _, s := range slices.Backward(sessions) {
		if s.RootPID == pid && s.Dumped() && s.Begun.After(begun) {
			say("the job was dumped and ended: cucriu restore -D " + s.ImageDir)
			return
		}
	}
	say("the job was killed (SIGKILL): by a dump that does not leave it running, for lack of memory, or by a user")
}

// addLongFlags adds the options of a long job. What it returns finds what is wrong with them
// together.
func addLongFlags(cmd *cobra.Command, o *jobs.Options) (check func(args []string) error) {
	flags := cmd.Flags()
	folderFlag(cmd, &o.Dir, "dir", "", "directory for the job's checkpoints and output; created if missing")
	folderFlag(cmd, &o.Image, "image", "", "start a new job from this image in place of a command: "+
		"the directory of another long job (its newest checkpoint), of one of its checkpoints, or of cucriu dump")
	copyImage := flags.Bool("copy-image", false, "with --image: copy the image into DIR before the first start; the job "+
		"then does without the original")
	flags.StringArrayVar(&o.Private, "private", nil, "with --image: give the job a private copy of this "+
		"directory, as of those in which the image was writing; may be repeated")
	flags.StringVar(&o.Net, "net", jobs.NetOwn, "with --image: the job's network: own (loopback, and --publish), "+
		"host, or a network namespace that is prepared, by its name in ip netns or by its path")
	publish := flags.StringArray("publish", nil, "with --image: forward a port of the host to the job, whose own network "+
		"has no other way in or out: [ADDRESS:]NEW:OLD[/udp], where NEW may be 0 for any free one; may be repeated")
	flags.StringVar(&o.Name, "name", "", "the job's name (default: the last part of DIR)")
	flags.StringVar(&o.User, "user", "", "user to run the job as, by name or number (default: root)")
	sizeFlag(cmd, &o.FilesLimit, "files-limit", "how much content of files that the job has open for writing may be saved in a checkpoint, such as 512M")
	flags.Lookup("files-limit").DefValue = "1G"
	flags.BoolVar(&o.VerifyUnchanged, "verify-unchanged", false, "also copy GPU memory that counts as unchanged since the last checkpoint, and make no checkpoint if it has changed")
	flags.BoolVar(&o.WaitAll, "wait-all", false, "when the command has ended, wait for the other processes of the job instead of ending them")
	programFlag(cmd, &o.OnStart, "on-start", "run this program in the job's sandbox, as the job's user, before the job "+
		"runs, each time it is started or resumed: it gets the words that follow as arguments, no shell, and does "+
		"not see the job's GPUs; if it fails, or takes more than 60s, the job is not started (exit status 3)")
	programFlag(cmd, &o.OnStarted, "on-started", "run such a program once the job runs; a failure is only a warning")
	flags.BoolVar(&o.PrivateTmp, "private-tmp", false, "give the job a /tmp of its own, in memory, which is saved in its checkpoints")
	flags.StringArrayVar(&o.NotSaved, "not-saved", nil, "leave this file of the job as it is when the job is resumed from a checkpoint; may be repeated")
	o.Every = 30 * time.Minute
	flags.Var((*interval)(&o.Every), "every", "time between checkpoints; never disables scheduled checkpoints")
	flags.Var(&value{kind: "condition", set: func(text string) (err error) {
		if o.CheckpointWhen = (ready.Condition{}); text != "" {
			o.CheckpointWhen, err = ready.Parse(text)
		}
		return err
	}}, "checkpoint-when", "make the first checkpoint once this is met, and none on schedule before: "+ready.Help+
		". criu dumps no job for which a connection waits: for a server that listens long before it takes connections, "+
		"use file: or log:, or no checkpoint can be made until it does")
	flags.Var(&value{kind: "percent", text: "0", set: func(text string) error {
		if o.Overhead = 0; text == "0" {
			return nil
		}
		percent, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
		if err != nil || !strings.HasSuffix(text, "%") || !(percent > 0 && percent <= 50) {
			return errors.New("must be 0, or more than 0% and at most 50%, such as 1%")
		}
		o.Overhead = percent / 100
		return nil
	}}, "overhead", "choose the interval so that checkpoints pause the job for this share of its time, such as 1%; --every applies until their cost is known; 0 is --every alone")
	flags.DurationVar(&o.MaxPause, "max-pause", 0, "skip a checkpoint that would probably pause the job for longer; 0 is no limit")
	flags.StringVar(&o.Stage, "stage", stageAuto, "where an image is written while the job is paused: a directory, memory, disk (in DIR), or auto: memory if it fits, else disk")
	flags.StringArrayVar(&o.Settings, "setting", nil, "add a setting to the job's environment that may cost speed; may be repeated: "+settingNames(true))
	flags.StringArrayVar(&o.NoSettings, "no-setting", nil, "leave out a setting that costs no speed; may be repeated: "+settingNames(false))
	choose(cmd, &o.Guest, "guest", "load a library into the job, by which processes that span GPUs can be restored, and large memory is moved faster: auto, where it was tried with the driver, or off",
		word[bool]{"auto", true}, word[bool]{"off", false})
	flags.IntVar(&o.Keep, "keep", 3, "how many checkpoints to keep")
	flags.Var(&value{kind: "size", text: "0", set: func(text string) (err error) {
		if o.MaxBytes = 0; text != "0" {
			o.MaxBytes, err = units.ParseSize(text)
		}
		return err
	}}, "max-bytes", "how much space the checkpoints may take in total, such as 500G; the newest verified one and pinned ones are kept; 0 is no limit")
	choose(cmd, &o.Compress, "compress", "compression of GPU memory in DIR, done while the job runs: none, s2 (fast) or zstd (smaller)",
		word[pages.Codec]{"none", 0}, word[pages.Codec]{"s2", pages.S2}, word[pages.Codec]{"zstd", pages.Zstd})
	choose(cmd, &o.Probe, "probe", "do trial restores of the first checkpoint, and of later ones when the job has new kinds of processes or files: beside the job, in a sandbox, without the GPUs: auto or off",
		word[bool]{"auto", true}, word[bool]{"off", false})
	flags.BoolVar(&o.Takeover, "takeover", false, "take the job over from a host that has not released it and is known to be down")
	preempt := flags.StringSlice("preempt", []string{"TERM"}, "signals that ask the job to leave this host, "+
		"such as TERM,USR1; none: no signal makes a last checkpoint, and SIGTERM is forwarded to the job")
	flags.DurationVar(&o.Grace, "grace", 0, "how long leaving may take, including the last checkpoint; 0 is no limit")
	flags.IntVar(&o.RequeueStatus, "requeue-status", 75, "exit status after leaving")
	choose(cmd, &o.Restart, "restart", "when to start the job again if it ends by itself: no, on-failure or "+
		"always, as of systemd; from its newest checkpoint, else its image or command. A start that fails is not tried "+
		"again. After 5 ends within a minute, the exit status is 125",
		word[jobs.Restart]{"no", jobs.RestartNo}, word[jobs.Restart]{"on-failure", jobs.RestartOnFailure},
		word[jobs.Restart]{"always", jobs.RestartAlways})
	flags.IntVar(&o.MovedStatus, "moved-status", 0, "exit status once the job has moved to another host (cucriu migrate --job)")
	pidFlag(cmd, &o.Adopt, "adopt", "", "adopt a job that is already running: the pid of its first process")
	criuFlag(cmd, &o.Criu, "path of the criu to run")
	flags.BoolVarP(&o.Verbose, "verbose", "v", false, "say why each variable is set in the job's environment, and how to leave it out")
	flags.StringVar(&o.Metrics, "metrics", "", "a file for the textfile collector of Prometheus's node exporter (name it *.prom)")
	return func(args []string) error {
		_, err := jobs.Describe(o.Dir)
		isNew := err != nil
		switch {
		case len(args) > 0 || o.Adopt != 0 || o.Image != "" && isNew:
		case errors.Is(err, os.ErrNotExist) && errors.As(err, new(*fault.Explained)): // there are checkpoints
			return runError{err}
		case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
			if hook, err := newHook(); err == nil {
				if err := jobs.RefuseVanished(hook.Config.RunDir, o.Dir); err != nil {
					return runError{err}
				}
			}
			return fmt.Errorf("%s contains no job yet: specify the command to run", o.Dir)
		case err == nil:
			if err := recallFlags(cmd, o.Dir); err != nil {
				return err
			}
		}
		o.Command, o.Output, o.Messages, o.Quiet, o.Flags = args, os.Stdout, logging.Stderr(), isSet(cmd, "quiet"), rememberedFlags(flags)
		if flags.Changed("copy-image") {
			o.CopyImage = copyImage
		}
		if o.Stage == stageAuto {
			o.Stage = ""
		}
		empty := func(text string) bool { return text == "" } // that is given to be rid of others
		for _, text := range slices.DeleteFunc(slices.Clone(*publish), empty) {
			port, err := relay.Parse(text)
			if err != nil {
				return err
			}
			o.Publish = append(o.Publish, port)
		}
		o.NotSaved, o.Settings, o.NoSettings = slices.DeleteFunc(o.NotSaved, empty), slices.DeleteFunc(o.Settings, empty), slices.DeleteFunc(o.NoSettings, empty)
		if slices.Equal(*preempt, []string{"none"}) {
			*preempt = nil
		}
		for _, name := range *preempt {
			sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(name)), "SIG"))
			if !slices.Contains([]unix.Signal{unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGINT, unix.SIGHUP}, sig) {
				return fmt.Errorf("--preempt %s: must be none, or of TERM, USR1, USR2, INT and HUP", name)
			}
			o.Preempt = append(o.Preempt, sig)
		}
		if strings.Contains(o.Name, "/") && isNew { // an older version may have named a job so
			return fmt.Errorf("--name %s: a name has no slash", o.Name)
		}
		for _, path := range o.NotSaved {
			if !filepath.IsAbs(path) {
				return fmt.Errorf("--not-saved %s: must be an absolute path", path)
			}
		}
		if isNew && len(args) > 0 {
			if err := checkInput(os.Stdin); err != nil {
				return err
			}
		}
		switch {
		case o.Image != "" && (len(args) > 0 || o.Adopt != 0):
			return errors.New("--image: the job is started from the image, so leave out the command and --adopt")
		case o.Image != "" && o.PrivateTmp:
			return errors.New("--private-tmp: a job from an image has a /tmp of its own if the job of the image had one")
		case o.Image == "" && isNew && (len(o.Private)+len(o.Publish) > 0 || o.Net != jobs.NetOwn || *copyImage):
			return errors.New("--copy-image, --private, --publish and --net apply only to a job that is started from an " +
				"image: see --image")
		case o.Net == "" || strings.Contains(o.Net, "/") && !filepath.IsAbs(o.Net):
			return fmt.Errorf("--net %s: must be own, host, or a network namespace: its name or absolute path", o.Net)
		case o.Net == jobs.NetHost && len(o.Publish) > 0:
			return errors.New("--net host: the job's ports are those of the host, so leave out --publish (--publish '' if it " +
				"is remembered)")
		case o.Adopt != 0 && len(args) > 0:
			return errors.New("--adopt: the job is already running, so leave out the command")
		case o.Adopt != 0 && (o.User != "" || o.PrivateTmp || o.WaitAll || cmd.Flags().Changed("guest") ||
			len(o.Settings)+len(o.NoSettings) > 0):
			return errors.New("--adopt: --user, --private-tmp, --wait-all, --guest, --setting and --no-setting apply only " +
				"to a job that cucriu run starts")
		case o.Every < 0 || o.Grace < 0 || o.MaxPause < 0:
			return errors.New("--every, --grace and --max-pause must not be negative")
		case o.Every > 0 && o.Every < time.Second:
			return fmt.Errorf("--every %v: must be at least 1s", o.Every)
		case o.Stage != "" && o.Stage != jobs.StageMemory && o.Stage != jobs.StageDisk && !filepath.IsAbs(o.Stage):
			return fmt.Errorf("--stage %s: must be auto, memory, disk, or an absolute path", o.Stage)
		case o.Metrics != "" && existing(filepath.Dir(o.Metrics)) == "":
			return fmt.Errorf("--metrics %s: no such directory", o.Metrics)
		case o.Keep < 1:
			return fmt.Errorf("--keep %d: must be at least 1", o.Keep)
		case o.RequeueStatus < 0 || o.RequeueStatus > 255:
			return fmt.Errorf("--requeue-status %d: must be between 0 and 255", o.RequeueStatus)
		case o.MovedStatus < 0 || o.MovedStatus > 255:
			return fmt.Errorf("--moved-status %d: must be between 0 and 255", o.MovedStatus)
		}
		if filepath.IsAbs(o.Stage) {
			if err := unix.Access(o.Stage+"/.", unix.F_OK); err != nil {
				return fmt.Errorf("--stage %s: %w", o.Stage, err)
			}
		}
		if o.User != "" {
			if _, err := job.LookupAccount(o.User); err != nil {
				return err
			}
		}
		return job.CheckSettings(slices.Concat(o.Settings, o.NoSettings)...)
	}
}

// checkInput refuses a file that was given to the job as its input, and warns of a pipe with input. Nobody has read
// from such a file yet: one that a shell reads its script or a list from is quietly kept from the job.
func checkInput(input *os.File) error {
	const remedy = "a job reads /dev/null: for input from a file, let it open that: -- sh -c 'exec PROGRAM <FILE'"
	info, err := input.Stat()
	if err != nil {
		return nil // it is closed
	}
	if at, err := input.Seek(0, io.SeekCurrent); err == nil && at == 0 && info.Mode().IsRegular() && info.Size() > 0 {
		return errors.New("the job would not get the file that is the standard input of cucriu run; " + remedy)
	}
	if waiting, err := unix.IoctlGetInt(int(input.Fd()), unix.TIOCINQ); err == nil && waiting > 0 &&
		info.Mode()&os.ModeNamedPipe != 0 {
		say("warning: the job does not get what is piped to cucriu run; " + remedy)
	}
	return nil
}

// interval is the value of an option: a duration, or never, which is 0.
type interval time.Duration

// Set implements [pflag.Value], as do the methods below.
func (i *interval) Set(text string) error {
	if text == "never" {
		text = "0"
	}
	d, err := time.ParseDuration(text)
	*i = interval(d)
	return err
}

func (i *interval) String() string { return time.Duration(*i).String() }
func (i *interval) Type() string   { return "duration" }

// stageAuto is the word for the default of --stage.
const stageAuto = "auto"

// runLong runs a long job, and returns its exit status as an error.
func runLong(cmd *cobra.Command, hook *hooks.Hook, options jobs.Options) error {
	if err := cmp.Or(requireRoot(cmd), proc.FitLimits(false)); err != nil {
		return runError{err}
	}
	signals, err := job.TakeSignals()
	if err != nil {
		return runError{err}
	}
	status, err := jobs.Run(cmd.Context(), hook, options, signals)
	if errors.As(err, new(jobs.UsageError)) {
		return usageError{err}
	}
	if errors.As(err, new(*jobs.ImageError)) {
		return preflight.AsRefusal(err)
	}
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
	for _, s := range job.Settings() {
		if s.Costs == costs {
			names = append(names, s.Name)
		}
	}
	return strings.Join(names, ", ")
}
