package main

import (
	"errors"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"cucriu/hooks"
)

// statusReport is the status command's JSON.
type statusReport struct {
	Sessions  []hooks.Status      `json:"sessions"`
	Processes []hooks.CUDAProcess `json:"processes"`
}

func statusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show the CUDA processes of this host, its dumps and restores, and what became of the jobs",
		Example: "  cucriu status\n  cucriu status --json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hook, err := newHook()
			if err != nil {
				return err
			}
			sessions, err := hooks.Sessions(hook.Config.RunDir)
			if err != nil {
				return err
			}
			processes, err := hook.Processes(cmd.Context())
			if asJSON {
				if jsonErr := writeJSON(cmd.OutOrStdout(), statusReport{sessions, processes}); jsonErr != nil {
					return jsonErr
				}
				return err
			}
			if err == nil {
				err = writeProcesses(cmd.OutOrStdout(), processes)
				fmt.Fprintln(cmd.OutOrStdout())
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "BEGUN\tSESSION\tPROCESSES\tOUTCOME\tIMAGES\tMESSAGE")
			for _, s := range sessions {
				outcome := string(s.Outcome)
				if outcome == "" {
					outcome = "open: " + string(s.Step)
				}
				if s.Elsewhere {
					outcome += ", left alone: of another pid namespace"
				}
				fmt.Fprintf(table, "%s\t%s\t%v\t%s\t%s\t%s\n", s.Begun.Local().Format("2006-01-02 15:04:05"), s.Session, s.PIDs(), outcome, existing(s.ImageDir), s.Message)
			}
			return errors.Join(err, table.Flush())
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// existing returns a path if something is there, else a dash: a dump that failed leaves no image,
// and an image may have been moved.
func existing(path string) string {
	if _, err := os.Stat(path); err != nil {
		return "-"
	}
	return path
}
