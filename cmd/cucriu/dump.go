package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
)

func dumpCommand() *cobra.Command {
	var criu criuFlags
	var pid int
	var leaveRunning, probe, asJSON bool
	var force []string
	cmd := &cobra.Command{
		Use:   "dump -t PID -D DIR",
		Short: "Dump a process tree with its GPU state, with criu",
		Long: `Dump a process tree with its GPU state, with criu.

What cucriu check -t PID finds is looked at first; an error among it refuses the
dump before anything is touched.

DIR is complete or absent at any time: it must not exist yet (or be empty), and
appears once the whole image is on disk, before the job is ended. If anything
fails, or the dump is interrupted (Ctrl-C), the job runs on as before; should it
have ended meanwhile, the message says so.

With --leave-stopped it returns when every thread stands still, with the GPU
state back. (After criu dump -s the watcher brings it back when criu has ended,
and the threads run for that moment: wait for the outcome "stopped" in cucriu
status.)

What criu needs for the tree is found and set: --shell-job, --tcp-established, a
--network-lock that works here, --file-locks, a --ghost-limit and --ext-unix-sk. It
is recorded in the image, so that a restore needs none of it by hand. What is
given by hand counts, and --no-auto leaves it all to you. A file that is in use by a
name which was removed, and has another one (a named semaphore), is linked to the
name that the kernel tells of it, "NAME (deleted)", and stays until you remove it.

The options are criu's; those that are not here can be given in a configuration
file of criu with --criu-config. criu's default configuration files count too.`,
		Example: `  cucriu dump -t 4711 -D /var/lib/images/job1
  cucriu dump -t 4711 -D /var/lib/images/job1 --leave-running
  cucriu dump -t 4711 -D /tmp/images -j --tcp-established --json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if pid == 0 {
				return usageError{errors.New("name the root of the tree with -t")}
			}
			if leaveRunning && criu.leaveStopped {
				return usageError{errors.New("either -R or -s")}
			}
			if err := preflight.CheckForce(force); err != nil {
				return usageError{err}
			}
			options, err := criu.options()
			if err != nil {
				return err
			}
			options.RPC.Pid = proto.Int32(int32(pid))
			options.RPC.LeaveRunning = proto.Bool(leaveRunning)
			options.Probe = probe
			return drive(cmd, "dump", asJSON, criu.images, func(ctx context.Context, hook *hooks.Hook) (checkpoint.Result, error) {
				hook.Force = force
				return checkpoint.Dump(ctx, hook, criu.images, options)
			})
		},
	}
	criu.add(cmd)
	flags := cmd.Flags()
	flags.VarP((*pidValue)(&pid), "tree", "t", "the root of the process tree (required)")
	flags.BoolVarP(&leaveRunning, "leave-running", "R", false, "leave the job running afterwards")
	flags.BoolVar(&probe, "probe", false, "before the job is ended, restore the image on trial in a sandbox, without the GPUs; if that shows that it cannot be restored, the job runs on")
	flags.BoolVar(&criu.skipInFlight, "skip-in-flight", false, "skip TCP connections that are not established yet")
	flags.StringVar(&criu.ghostLimit, "ghost-limit", "", "up to which size deleted files are dumped, such as 256M")
	flags.StringVar(&criu.freezeCgroup, "freeze-cgroup", "", "the control group through which criu freezes the tree")
	flags.StringArrayVar(&force, "force", nil, "override what a check refuses, by the finding's name (see cucriu check); may be repeated")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// drive runs a dump or restore, and shows its progress and its summary.
func drive(cmd *cobra.Command, verb string, asJSON bool, images string, do func(context.Context, *hooks.Hook) (checkpoint.Result, error)) error {
	hook, err := newHook()
	if err != nil {
		return err
	}
	preflight.LimitOwnMemory()
	ctx := cmd.Context()
	p := newProgress(images)
	hook.Progress = p.step
	undone := context.AfterFunc(ctx, func() {
		p.say(fmt.Sprintf("%v: undoing what was begun, as soon as criu comes to a point where it can be", context.Cause(ctx)))
	})
	result, err := do(ctx, hook)
	undone()
	p.stop()
	if err == nil && ctx.Err() != nil {
		p.say(fmt.Sprintf("%v too late: the %s is complete", context.Cause(ctx), verb))
	}
	if asJSON {
		if jsonErr := writeJSON(cmd.OutOrStdout(), newSummary(verb, result, err)); err == nil {
			err = jsonErr
		}
		return err
	}
	if err == nil {
		fmt.Fprint(cmd.OutOrStdout(), newSummary(verb, result, nil))
	}
	return err
}
