package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func jobsPinCommand(pin bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "pin DIR|NAME CHECKPOINT",
		Short:   "Never remove a checkpoint to make room",
		Example: "  cucriu jobs pin train 000012",
	}
	said := "checkpoint %s of %s is pinned\n"
	if !pin {
		cmd.Use, cmd.Short, cmd.Example = "unpin DIR|NAME CHECKPOINT", "Let a checkpoint be removed again to make room", "  cucriu jobs unpin train 000012"
		said = "checkpoint %s of %s is not pinned\n"
	}
	cmd.Long = cmd.Short + `.

A pinned checkpoint does not count among those that --keep keeps. It can be done
while the job runs.`
	cmd.Args = jobArgument(1, 1)
	cmd.ValidArgsFunction = completeJob(true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		_, job, view, err := viewJob(args[0])
		if err != nil {
			return err
		}
		all, err := pickCheckpoints(view, args[1:])
		if err != nil {
			return err
		}
		if all[0].Err != nil && pin {
			return refusedError{all[0].Err}
		}
		if err := view.Pin(all[0].Name, pin); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), said, all[0].Name, job.Name)
		return nil
	}
	return cmd
}
