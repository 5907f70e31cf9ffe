package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func recoverCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Bring back every job whose dump or restore was cut off and that nobody watches",
		Long: `Bring back every job whose dump or restore was cut off and that nobody watches.

After a dump that failed, the watcher brings the job back by itself. If the
watcher, too, was killed, this command does what it would have done. Sessions
whose criu, hook or watcher is still at work are left alone. It can be run at
any time, and again. The exit status is 4 if a job is still not back.`,
		Example: "  cucriu recover",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hook, err := newHook()
			if err != nil {
				return err
			}
			ended := sayAtSignal(cmd, "what is not back yet is left to the next cucriu recover")
			recovered, err := hook.Recover(cmd.Context())
			ended(err)
			if asJSON {
				if jsonErr := writeJSON(cmd.OutOrStdout(), recovered); jsonErr != nil {
					return jsonErr
				}
				return err
			}
			for _, s := range recovered {
				if s.Outcome != "" { // otherwise the error reports it
					fmt.Fprintf(cmd.OutOrStdout(), "%s %v: %s: %s\n", s.Kind, s.PIDs(), s.Outcome, s.Message)
				}
			}
			if len(recovered) == 0 && err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), "nothing to recover")
			}
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
