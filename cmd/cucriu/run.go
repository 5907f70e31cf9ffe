package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/hooks/jobs/job"
	"cucriu/hooks/journal"
	"cucriu/internal/logging"
)

func runCommand() *cobra.Command {
	var noCheckpoints bool
	var pidFile string
	var long longFlags
	cmd := &cobra.Command{
		Use:   "run --dir DIR [--] COMMAND [ARG...]",
		Short: "Run a long job: start it, make checkpoints of it, go on from the newest",
		Long: `Run a long job. If DIR holds no checkpoint of it, COMMAND is started; else the job
goes on from the newest checkpoint that is whole. So the same command line serves
the first start and every start after a failure, a preemption or a reboot.

The job runs in pid, mount and time namespaces of its own: its pids are always free
and its clocks go on evenly. If cucriu run is killed, the job runs on, and the same
command line takes it under care again. The job's output is kept in DIR/output.log,
and shown here.

A checkpoint is made every --every. The job stands still only until its memory has
been copied. At a signal of --preempt (SIGTERM) a last checkpoint is made, the job is
ended, and the exit status is --requeue-status; a second signal ends it at once.
Other signals are passed on: to the whole process group what a terminal sends there
(Ctrl-C, Ctrl-\), to the first process SIGUSR1, SIGUSR2 and SIGALRM. Ctrl-Z stops
cucriu run, and the job runs on. With --stdin the job reads our standard input, and
with --tty it has a terminal of its own, at which Ctrl-C and Ctrl-Z mean what they mean
at any terminal.

criu cannot dump an io_uring. Some programs open one if they can: torchrun and
PyTorch's TCPStore (by libuv), uvloop, Node.js. The job runs under a seccomp filter
under which io_uring_setup fails with ENOSYS, and these programs do without.

The exit status is the job's, and 128+n if signal n has ended it. It is 127 if COMMAND
was not found, 126 if it cannot be executed, and 125 if cucriu itself has failed.

With --adopt PID a job is taken under care that runs already. It runs where it was
started until it goes on from a checkpoint.

With --no-checkpoints the job is only started so that cucriu dump -t PID can dump it:
under that filter, in a session of its own, with the standard streams of cucriu run,
and not in namespaces. The first line on stderr names its pid; so does --pidfile.
Without CAP_SYS_ADMIN, set-user-id programs such as sudo gain no rights then.`,
		Example: "  cucriu run --dir /var/lib/jobs/train --every 30m -- torchrun --nproc-per-node 2 train.py\n" +
			"  cucriu run --dir /shared/jobs/$SLURM_JOB_ID --takeover --grace 60s --requeue-status 85 -- python train.py\n" +
			"  cucriu run --no-checkpoints --pidfile job.pid python train.py &\n  cucriu dump -t $(cat job.pid) -D /var/lib/images/job1",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && long.dir == "" || len(args) > 0 && args[0] == "" {
				return errors.New("name the command to run")
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault // files
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if noCheckpoints == (long.dir != "") {
				return usageError{errors.New("name the directory of the job with --dir, or say --no-checkpoints and dump the job with cucriu dump")}
			}
			hook, err := newHook()
			if err != nil {
				return err
			}
			if noCheckpoints {
				return runJob(cmd.Context(), hook.Config.RunDir, args, pidFile)
			}
			return runLong(cmd, hook, long, args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows COMMAND is its own
	flags.BoolVar(&noCheckpoints, "no-checkpoints", false, "make no checkpoints: only start the job")
	flags.StringVar(&pidFile, "pidfile", "", "with --no-checkpoints: write the pid of the job to this file")
	long.add(cmd)
	return cmd
}

// runJob runs a job until it ends, and returns its exit status as an error.
func runJob(ctx context.Context, runDir string, command []string, pidFile string) error {
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
	fmt.Fprintf(logging.Stderr(), "cucriu: the job has pid %d: cucriu dump -t %d -D DIR\n", started.PID, started.PID)
	if pidFile != "" {
		if err := renameio.WriteFile(pidFile, []byte(strconv.Itoa(started.PID)+"\n"), 0o644); err != nil {
			fmt.Fprintln(logging.Stderr(), "cucriu: the job runs, but its pid file could not be written:", err)
		}
	}
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
	sessions, _ := hooks.Sessions(runDir) // those of a job that does not use CUDA are not there
	for _, s := range slices.Backward(sessions) {
		if s.RootPID == pid && s.Kind == journal.KindDump && s.Step == journal.StepDumped && s.Begun.After(begun) {
			fmt.Fprintf(logging.Stderr(), "cucriu: the job was dumped and ended: cucriu restore -D %s\n", s.ImageDir)
			return
		}
	}
	fmt.Fprintln(logging.Stderr(), "cucriu: the job was killed (SIGKILL): by a dump that does not leave it running, for lack of memory, or by somebody")
}
