package main

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/spf13/cobra"

	"cucriu/hooks/jobs/store"

	"cucriu/internal/units"
)

// verifyReport says in JSON how a checkpoint was found.
type verifyReport struct {
	Name  string `json:"name"`
	Whole bool   `json:"whole"`
	Bytes int64  `json:"bytes"`
	Error string `json:"error,omitempty"`
}

func jobsVerifyCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify DIR|NAME [CHECKPOINT...]",
		Short: "Read all of a long job's checkpoints, and find out whether they are as they were written",
		Long: `Read all of a long job's checkpoints, or of those that are named, and find out
whether they are as they were written.

They are read from the disk, on all processors, and every byte is compared with
its checksum. One that is whole is marked as verified. The exit status is 1 if
something is damaged.`,
		Example:           "  cucriu jobs verify train\n  cucriu jobs verify /var/lib/jobs/train 000012",
		Args:              jobArgument(0, -1),
		ValidArgsFunction: completeJob(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, job, view, err := viewJob(args[0])
			if err != nil {
				return err
			}
			all, err := pickCheckpoints(view, args[1:])
			if err != nil {
				return err
			}
			reports := []verifyReport{} // not nil: null is no list in JSON
			damaged := 0
			for _, c := range all {
				err := verifyCheckpoint(cmd, view, c)
				if cmd.Context().Err() != nil {
					return fmt.Errorf("checkpoint %s: given up", c.Name)
				}
				r := verifyReport{Name: c.Name, Whole: err == nil, Bytes: c.Bytes}
				text := fmt.Sprintf("checkpoint %s is whole: %s", c.Name, units.Size(c.Bytes))
				if err != nil {
					damaged++
					r.Error, text = err.Error(), err.Error()
				}
				reports = append(reports, r)
				if !asJSON {
					fmt.Fprintln(cmd.OutOrStdout(), text)
				}
			}
			switch {
			case asJSON:
				if err := writeJSON(cmd.OutOrStdout(), reports); err != nil {
					return err
				}
			case len(all) == 0:
				fmt.Fprintf(cmd.OutOrStdout(), "%s (%s) has no checkpoint\n", job.Name, job.Dir)
			}
			if damaged > 0 {
				return fmt.Errorf("%d of %d checkpoints of %s cannot be used: cucriu run goes on from the newest that can", damaged, len(all), job.Name)
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func verifyCheckpoint(cmd *cobra.Command, view *store.Store, c store.Checkpoint) error {
	var done atomic.Int64
	progress := newProgress(c.Dir)
	defer progress.stop()
	progress.measured("reading checkpoint "+c.Name, func() (int64, int64) { return done.Load(), c.Bytes })
	return view.Verify(cmd.Context(), c, runtime.GOMAXPROCS(0), func(p store.Progress) { done.Store(p.Done) })
}
