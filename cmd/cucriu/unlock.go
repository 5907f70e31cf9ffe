package main

import "github.com/spf13/cobra"

func unlockCommand() *cobra.Command {
	var pids []int
	cmd := &cobra.Command{
		Use:     "unlock -p PID",
		Short:   "Let processes that were locked submit work again",
		Example: "  cucriu unlock -p 4711",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hook, err := newHook()
			if err != nil {
				return err
			}
			return hook.Unlock(cmd.Context(), pids)
		},
	}
	pidsFlag(cmd, &pids)
	return cmd
}
