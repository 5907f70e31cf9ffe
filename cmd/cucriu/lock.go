package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func lockCommand() *cobra.Command {
	var pids []int
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "lock -p PID",
		Short: "Keep processes from submitting work to their GPUs",
		Long: `Keep processes from submitting work to their GPUs.

What runs on the GPUs has ended when this command returns, and calls that submit
more wait for cucriu unlock. Several processes are locked all or none, which is
the only way for ranks that wait for each other.`,
		Example: "  cucriu lock -p 4711\n  cucriu lock -p 4711 -p 4712 --timeout 1m",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hook, err := newHook()
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("timeout") {
				hook.Config.Lock.Timeout = timeout
				hook.Config.Lock.Try = min(hook.Config.Lock.Try, timeout)
				if err := hook.Config.Validate(); err != nil {
					return usageError{fmt.Errorf("--timeout: %w", err)}
				}
			}
			ended := sayAtSignal(cmd, "undoing what was begun, as soon as the driver answers")
			err = hook.Lock(cmd.Context(), pids)
			ended(err)
			return err
		},
	}
	pidsFlag(cmd, &pids)
	cmd.Flags().Var((*timeoutValue)(&timeout), "timeout", "how long work in flight may take; lock.timeout of the configuration if not given")
	return cmd
}
