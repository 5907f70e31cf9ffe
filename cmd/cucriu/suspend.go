package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func suspendCommand() *cobra.Command {
	var asJSON bool
	var processes []int
	cmd := &cobra.Command{
		Use:   "suspend -p PID",
		Short: "Free the GPUs of processes: move their GPU memory into host memory and stop them",
		Long: `Free the GPUs of processes: move their GPU memory into host memory and stop them.

They stand still until cucriu resume, even if somebody sends them SIGCONT. (One
that cannot be held so, as a warning says, must not be continued: a thread that
synchronizes with the GPU while its process is checkpointed dies.) What they need
to go on is in the run directory. If this command fails or is killed, they run on.`,
		Example: "  cucriu suspend -p 4711\n  cucriu resume -p 4711",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hook, err := newHook()
			if err != nil {
				return err
			}
			ended := sayAtSignal(cmd, "undoing what was begun, as soon as the driver answers")
			s, err := hook.Suspend(cmd.Context(), processes)
			ended(err)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), s)
			}
			for _, pid := range s.PIDs() {
				fmt.Fprintf(cmd.OutOrStdout(), "process %d is checkpointed and stopped; cucriu resume -p %d brings it back\n", pid, pid)
			}
			return nil
		},
	}
	pidsFlag(cmd, &processes)
	jsonFlag(cmd, &asJSON)
	return cmd
}
