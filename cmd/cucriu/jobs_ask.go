package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"cucriu/hooks/jobs"
)

// askCommands are those that the supervisor of a job carries out.
func askCommands() []*cobra.Command {
	return []*cobra.Command{
		askCommand(jobs.AskCheckpoint, "Make a checkpoint of a long job now", `Make a checkpoint of a long job now, and wait until it is in the job's directory.

If one is being made just now, this one follows it. If the command is given up,
the checkpoint that was begun is made all the same.`),
		askCommand(jobs.AskPause, "Let a long job stand still, with its GPUs free", `Let a long job stand still, with its GPU memory moved into host memory, so that
somebody else can use its GPUs. A job without CUDA is only stopped.

A checkpoint is made first, because a paused job lives in the memory of this host
only. Until cucriu jobs resume there are no more, and the job stays paused if its
cucriu run is killed.`),
		askCommand(jobs.AskResume, "Let a paused long job go on", `Let a paused long job go on. It is refused, and the job stays paused, if its GPUs
lack the memory.`),
		askCommand(jobs.AskStop, "Make a last checkpoint of a long job, and end it", `Make a last checkpoint of a long job, and end it, as at a preemption: its cucriu run
ends with --requeue-status, and the same command line goes on from there, on any
host.

If the checkpoint cannot be made, the job goes on, and the exit status is 1. To end
it all the same, send its cucriu run a SIGTERM.`),
	}
}

func askCommand(op, short, long string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: op + " DIR|NAME", Short: short, Long: long,
		Example:           fmt.Sprintf("  cucriu jobs %s train\n  cucriu jobs %s /var/lib/jobs/train", op, op),
		Args:              jobArgument(0, 0),
		ValidArgsFunction: completeJob(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			answer, err := ask(cmd.Context(), args[0], jobs.Request{Op: op}, asJSON)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), answer)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), answer.Message)
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
