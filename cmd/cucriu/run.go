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
	"cucriu/hooks/jobs"
	"cucriu/hooks/journal"
)

func runCommand() *cobra.Command {
	var noCheckpoints bool
	var pidFile string
	cmd := &cobra.Command{
		Use:   "run --no-checkpoints [--] COMMAND [ARG...]",
		Short: "Start a job so that it can be dumped",
		Long: `Start a job so that it can be dumped.

criu cannot dump an io_uring. Some programs open one if they can: torchrun and
PyTorch's TCPStore (by libuv), uvloop, Node.js. The job runs under a seccomp filter
under which io_uring_setup fails with ENOSYS, and these programs do without.

The job gets a session of its own, and the standard streams of cucriu run. The first
line on stderr names its pid, for cucriu dump -t; so does --pidfile. Signals are
passed on: to the whole process group what a terminal sends there (Ctrl-C, Ctrl-\,
Ctrl-Z, hangup), to the first process SIGTERM, SIGUSR1, SIGUSR2 and SIGALRM.

The exit status is the job's, and 128+n if signal n has ended it: 137 after a dump.
It is 127 if COMMAND was not found, 126 if it cannot be executed, and 125 if the job
could not be started for another reason.

Without CAP_SYS_ADMIN, set-user-id programs such as sudo gain no rights in the job.

Checkpoints on a schedule are not there yet, so --no-checkpoints is required.`,
		Example: "  cucriu run --no-checkpoints -- torchrun --nproc-per-node 2 train.py\n" +
			"  cucriu run --no-checkpoints --pidfile job.pid python train.py &\n  cucriu dump -t $(cat job.pid) -D /var/lib/images/job1",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "" {
				return errors.New("name the command to run")
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault // files
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !noCheckpoints {
				return usageError{errors.New("checkpoints on a schedule are not there yet: add --no-checkpoints, and dump the job with cucriu dump")}
			}
			hook, err := newHook()
			if err != nil {
				return err
			}
			return runJob(cmd.Context(), hook.Config.RunDir, args, pidFile)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows COMMAND is its own
	flags.BoolVar(&noCheckpoints, "no-checkpoints", false, "make no checkpoints on a schedule (required)")
	flags.StringVar(&pidFile, "pidfile", "", "write the pid of the job to this file")
	return cmd
}

// runJob runs a job until it ends, and returns its exit status as an error.
func runJob(ctx context.Context, runDir string, command []string, pidFile string) error {
	signals, err := jobs.TakeSignals()
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	begun := time.Now()
	job, err := jobs.Start(command)
	if err != nil {
		return err
	}
	go signals.PassTo(job)
	fmt.Fprintf(os.Stderr, "cucriu: the job has pid %d: cucriu dump -t %d -D DIR\n", job.PID, job.PID)
	if pidFile != "" {
		if err := renameio.WriteFile(pidFile, []byte(strconv.Itoa(job.PID)+"\n"), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "cucriu: the job runs, but its pid file could not be written:", err)
		}
	}
	status, err := job.Wait()
	if err != nil {
		return err
	}
	if status == exitSignal+int(unix.SIGKILL) {
		sayWhyKilled(runDir, job.PID, begun)
	}
	if status != 0 {
		return exitStatus(status)
	}
	return nil
}

// sayWhyKilled says whether a dump has ended the job.
func sayWhyKilled(runDir string, pid int, begun time.Time) {
	sessions, _ := hooks.Sessions(runDir) // those of a job that does not use CUDA are not there
	for _, s := range slices.Backward(sessions) {
		if s.RootPID == pid && s.Kind == journal.KindDump && s.Step == journal.StepDumped && s.Begun.After(begun) {
			fmt.Fprintf(os.Stderr, "cucriu: the job was dumped and ended: cucriu restore -D %s\n", s.ImageDir)
			return
		}
	}
	fmt.Fprintln(os.Stderr, "cucriu: the job was killed (SIGKILL): by a dump that does not leave it running, for lack of memory, or by somebody")
}
