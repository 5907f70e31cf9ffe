package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/config"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/logging"
	"cucriu/internal/kit/self"
)

func restoreCommand() *cobra.Command {
	var criu criuFlags
	var pidFile string
	var foreground, detached, cutLogs bool
	var pairs []config.Rule
	cmd := &cobra.Command{
		Use:   "restore -D DIR",
		Short: "Restore a process tree with its GPU state, with criu",
		Long: `
It returns once the job runs, and leaves it running; with --foreground it waits,
forwards signals to the job's root process and exits with its exit status.

A job that wrote into a pipe to a process outside its tree writes to the standard
output of this command instead; if that is a pipe, only with --foreground, otherwise
to /dev/null.

The checks that can be made beforehand (whether the image is complete, whether its
pids are free, whether its files and directories are unchanged, driver version, GPU
map, free GPU memory) are made before criu creates anything. If the restore fails
later, the restored processes are killed, or kept stopped with restore.on_failure:
leave in the configuration; the image stays unchanged.`,
		Example: `  cucriu restore -D /var/lib/images/job1
  cucriu restore -D /var/lib/images/job1 -j --foreground
  cucriu restore -D /var/lib/images/job1 --map 0=1 --map 1=0 --pidfile /run/job1.pid`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if foreground && cmd.Flags().Changed("restore-detached") {
				return usageError{errors.New("--foreground and -d cannot be combined")}
			}
			if !detached {
				return usageError{errors.New("-d=false: use --foreground to wait for the job")}
			}
			if os.Getpid() == 1 && !foreground {
				return preflight.AsRefusal(errors.New("cucriu restore is PID 1 here, and the job would end with this pid namespace as soon as it returns: give --foreground"))
			}
			if err := criu.check(); err != nil {
				return err
			}
			criu.RPC.RstSibling = proto.Bool(foreground) // so that the root is our child, and we get its exit status
			if asJSON(cmd) {
				criu.Output = os.Stderr // nothing but JSON on the standard output
			}
			var signals chan os.Signal
			if foreground { // from now on: one that comes too late to undo the restore is the job's
				signals = make(chan os.Signal, 16)
				signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH)
			}
			root, over := 0, deferStops(cmd)
			err := drive(cmd, func(ctx context.Context, hook *hooks.Hook) (checkpoint.Result, error) {
				useMap(hook, pairs)
				result, err := jobs.RestoreCut(ctx, hook, criu.images, criu.Options, cutLogs)
				if isInOwnWay(err) {
					over()
					over = func() {}
					err = errors.Join(err, startAbove(criu.images))
				}
				root = result.RootPID
				return result, err
			})
			over()
			if err != nil {
				return err
			}
			writePID(pidFile, root)
			if foreground {
				return attach(root, signals, criu.RPC.GetShellJob())
			}
			return nil
		},
	}
	criu.add(cmd)
	mapFlag(cmd, &pairs)
	flags := cmd.Flags()
	flags.BoolVar(&foreground, "foreground", false, "wait, forward signals, and exit with the job's exit status")
	flags.BoolVarP(&detached, "restore-detached", "d", true, "return once the job runs (the default)")
	flags.BoolVar(&cutLogs, "cut-logs", false, "truncate logs that the job was writing at their end (> FILE) and that have grown back to their size at the dump, and keep the newer content beside them; those opened for appending (>> FILE) are restored as they are, at any size")
	pidFileFlag(cmd, &pidFile, "write the pid of the root process to this file")
	jsonFlag(cmd)
	return cmd
}

// startedAbove is in the environment of a program that was started again by [startAbove].
const startedAbove = "CUCRIU_STARTED_ABOVE"

// isInOwnWay reports whether a restore was refused only because this program's own threads have numbers that the
// image needs, as in a new pid namespace, where both begin at 1.
func isInOwnWay(err error) bool {
	refused := new(preflight.RefusedError)
	return os.Getenv(startedAbove) == "" && errors.As(err, &refused) && !slices.ContainsFunc(refused.Findings, func(f preflight.Finding) bool {
		return f.Name != preflight.FindingPIDTaken || f.PID != os.Getpid()
	})
}

// startAbove starts this program again, as the same process, with the numbers of new threads above those of the
// image. It returns only if it fails.
func startAbove(dir string) error {
	tree, err := imagedir.Open(dir).Whole()
	if err != nil {
		return err
	}
	last := strconv.Itoa(slices.Max(append(tree.Numbers(), os.Getpid())))
	if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(last), 0); err != nil {
		return err
	}
	say("threads of this program have numbers that the image needs: it starts again with others")
	logging.Stderr().Flush() // what is said in the background ends with this program
	return os.NewSyscallError("execve", unix.Exec(self.Path, os.Args, append(os.Environ(), startedAbove+"="+last)))
}

// writePID writes the pid of a job that runs to a file, if one is named.
func writePID(file string, pid int) {
	if file == "" {
		return
	}
	err := requireFile(file)
	if err == nil {
		err = renameio.WriteFile(file, []byte(strconv.Itoa(pid)+"\n"), 0o644)
	}
	if err != nil {
		say(fmt.Sprintf("warning: the job runs, but its pid file could not be written: %v", err))
	}
}

// attach stays with a restored job that is our child. It passes signals to the job's root process, and
// returns the root's exit status as an error. A shell job gets the terminal in the meantime.
func attach(root int, signals <-chan os.Signal, shellJob bool) error {
	process, err := os.FindProcess(root)
	if err != nil {
		return fmt.Errorf("the restored job: %w", err)
	}
	go func() {
		for s := range signals {
			_ = process.Signal(s) // it may have ended
		}
	}()
	if shellJob {
		defer giveTerminal(root)()
	}
	state, err := process.Wait()
	if err != nil {
		return fmt.Errorf("wait for the restored job: %w", err)
	}
	status := state.Sys().(syscall.WaitStatus)
	switch {
	case status.Signaled():
		return exitStatus(exitSignal + int(status.Signal()))
	case status.ExitStatus() != 0:
		return exitStatus(status.ExitStatus())
	}
	return nil
}

// giveTerminal makes the job's process group the foreground group of our terminal, if we have
// one. It returns a function that takes the terminal back.
func giveTerminal(root int) func() {
	group, err := unix.Getpgid(root)
	ours, ttyErr := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	if err != nil || ttyErr != nil {
		return func() {}
	}
	signal.Ignore(unix.SIGTTOU) // setting the group back would send it to us
	_ = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, group)
	return func() { _ = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, ours) }
}
