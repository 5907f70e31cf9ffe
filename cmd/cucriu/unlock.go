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
			ended := sayAtSignal(cmd, "an unlock that has begun goes on")
			err = hook.Unlock(cmd.Context(), pids)
			ended(err)
			return err
		},
	}
	pidsFlag(cmd, &pids)
	return cmd
}
