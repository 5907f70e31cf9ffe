package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cucriu/hooks/jobs"
	"cucriu/hooks/jobs/files"
	"cucriu/hooks/jobs/store"
	"cucriu/hooks/preflight"

	"cucriu/internal/units"
)

// jobReport is a job, and one of its checkpoints, in JSON.
type jobReport struct {
	Job        jobs.Local         `json:"job"`
	DiskBytes  int64              `json:"disk_bytes"` // of all checkpoints
	Owner      *store.Owner       `json:"owner,omitempty"`
	Checkpoint *checkpointReport  `json:"checkpoint,omitempty"`
	Findings   preflight.Findings `json:"findings,omitempty"`
	// Tails are what resumes have kept of the job's files.
	Tails []files.Kept `json:"tails,omitempty"`
}

func jobsShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show DIR|NAME [CHECKPOINT]",
		Short: "Show a long job and one of its checkpoints: the newest, if none is named",
		Long: `Show a long job and one of its checkpoints: the newest, if none is named.

The checkpoint is looked at as cucriu run looks at it before it resumes it: all
files but the GPU's pages are read and compared with their checksums, and whether
this host can take it is found out. Nothing is touched.`,
		Example:           "  cucriu jobs show train\n  cucriu jobs show /var/lib/jobs/train 000012",
		Args:              jobArgument(0, 1),
		ValidArgsFunction: completeJob(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			hook, job, view, err := viewJob(args[0])
			if err != nil {
				return err
			}
			report := jobReport{Job: job}
			if report.DiskBytes, err = view.DiskBytes(); err != nil {
				return err
			}
			if report.Tails, err = jobs.Tails(job.Dir); err != nil {
				return err
			}
			if owner, err := view.Owner(); err == nil && owner.Generation > 0 {
				report.Owner = &owner
			}
			all, err := pickCheckpoints(view, args[1:])
			if err != nil {
				return err
			}
			if len(all) > 0 {
				c := all[len(all)-1]
				r := reportOf(c)
				if err := view.Check(cmd.Context(), c); err != nil {
					r.Error = err.Error()
				} else {
					r.Here, r.WhyNotHere = takes(cmd.Context(), hook, c)
					if report.Findings, err = jobs.CheckRestore(cmd.Context(), hook, c.Dir); err != nil {
						return err
					}
					report.Findings = hook.Judge(report.Findings)
				}
				report.Checkpoint = &r
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), report)
			}
			return writeJob(cmd.OutOrStdout(), report)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func writeJob(out io.Writer, report jobReport) error {
	if err := writeJobs(out, []jobs.Local{report.Job}); err != nil {
		return err
	}
	if report.Owner != nil && !report.Owner.Released {
		fmt.Fprintf(out, "owned by %v\n", report.Owner)
	}
	fmt.Fprintf(out, "all checkpoints take %s\n", units.Size(report.DiskBytes))
	if len(report.Tails) > 0 {
		var bytes int64
		for _, kept := range report.Tails {
			bytes += kept.Bytes
		}
		text := fmt.Sprintf("resumes have kept what was newer in the job's files: %s in %d files, the last %s; cucriu jobs prune --tails removes them",
			units.Size(bytes), len(report.Tails), report.Tails[len(report.Tails)-1].Path)
		fmt.Fprintln(out, strings.Join(wrap(text, widthOf(out, textColumns)), "\n"))
	}
	fmt.Fprintln(out)
	r := report.Checkpoint
	if r == nil {
		_, err := fmt.Fprintln(out, "there is no checkpoint")
		return err
	}
	fmt.Fprintf(out, "checkpoint %s in %s\n", r.Name, r.Dir)
	if r.Error != "" {
		_, err := fmt.Fprintln(out, strings.Join(wrap("damaged: "+r.Error, widthOf(out, textColumns)), "\n"))
		return err
	}
	table := newTable(out, "", "")
	table.lines = nil
	table.row("made", r.CreatedAt.Local().Format(time.DateTime)+" on "+r.Host+", for: "+orDash(r.Reason))
	table.row("size", fmt.Sprintf("%s, of which %s alone and %s new", units.Size(r.Bytes), units.Size(r.AloneBytes), units.Size(r.NewBytes)))
	table.row("pause", seconds(r.PauseSeconds))
	table.row("GPUs", models(r.GPUs)+", driver "+orDash(r.Driver))
	table.row("marks", marks(*r))
	if r.Trial != nil {
		table.row("trial", r.Trial.String())
	}
	if err := table.write(out); err != nil {
		return err
	}
	fmt.Fprintln(out)
	return writeFindings(out, report.Findings)
}
