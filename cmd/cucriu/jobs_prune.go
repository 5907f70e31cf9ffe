package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"cucriu/hooks"
	"cucriu/hooks/jobs"
	"cucriu/hooks/jobs/store"
)

func jobsPruneCommand() *cobra.Command {
	var keep int
	var maxBytes sizeValue
	var tails, dryRun, asJSON bool
	cmd := &cobra.Command{
		Use:   "prune DIR|NAME [--keep N] [--max-bytes SIZE]",
		Short: "Remove the oldest checkpoints of a long job",
		Long: `Remove the oldest checkpoints of a long job.

Only those are removed that are older than one which has been verified, and none
that is pinned. If the job runs, its supervisor does it.

--tails removes what resumes have kept of the job's files because it was newer than
the checkpoint (*.cucriu-DATE); cucriu jobs show tells how much that is.`,
		Example:           "  cucriu jobs prune train --keep 2\n  cucriu jobs prune /var/lib/jobs/train --max-bytes 500G --dry-run\n  cucriu jobs prune train --tails",
		Args:              jobArgument(0, 0),
		ValidArgsFunction: completeJob(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case !cmd.Flags().Changed("keep") && maxBytes == 0 && !tails:
				return usageError{errors.New("say what is to be kept, with --keep or --max-bytes, or --tails")}
			case cmd.Flags().Changed("keep") && keep < 1:
				return usageError{fmt.Errorf("--keep %d: at least 1", keep)}
			}
			hook, job, err := findJob(args[0])
			if err != nil {
				return err
			}
			var removed []string
			if keep > 0 || maxBytes > 0 {
				removed, err = prune(cmd.Context(), hook, job, store.Policy{Keep: keep, MaxBytes: int64(maxBytes), DryRun: dryRun})
			}
			if err == nil && tails {
				var more []string
				more, err = pruneTails(job, dryRun)
				removed = append(removed, more...)
			}
			if asJSON {
				return errors.Join(writeJSON(cmd.OutOrStdout(), append([]string{}, removed...)), err)
			}
			if err == nil || len(removed) > 0 {
				writeRemoved(cmd.OutOrStdout(), removed, dryRun)
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&keep, "keep", 0, "how many to keep, beside those that are pinned")
	flags.Var(&maxBytes, "max-bytes", "how much all of them may take on the disk, such as 500G")
	flags.BoolVar(&tails, "tails", false, "remove what resumes have kept of the job's files")
	flags.BoolVar(&dryRun, "dry-run", false, "remove nothing: show what would be removed")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func writeRemoved(out io.Writer, removed []string, dryRun bool) {
	switch {
	case len(removed) == 0:
		fmt.Fprintln(out, "nothing to remove")
	case dryRun:
		fmt.Fprintln(out, "would be removed:", strings.Join(removed, " "))
	default:
		fmt.Fprintln(out, "removed:", strings.Join(removed, " "))
	}
}

// prune removes checkpoints, through the supervisor of the job if there is one.
func prune(ctx context.Context, hook *hooks.Hook, job jobs.Local, policy store.Policy) ([]string, error) {
	if policy.DryRun {
		view, err := store.View(job.Dir)
		if err != nil {
			return nil, refusedError{err}
		}
		return namesOf(view.Prune(ctx, policy))
	}
	answer, err := jobs.Ask(ctx, hook.Config.RunDir, job, jobs.Request{Op: jobs.AskPrune, Prune: policy}, nil)
	if !errors.Is(err, jobs.ErrNoSupervisor) {
		return answer.Removed, err
	}
	// The store is given back afterwards, so that nobody may run the job now.
	if err := jobs.RequireGone(hook.Config.RunDir, job.Dir); err != nil {
		return nil, refusedError{fmt.Errorf("%s (%s): %w", job.Name, job.Dir, err)}
	}
	s, err := store.Open(job.Dir, store.OpenOptions{})
	if err != nil {
		return nil, refusedError{err}
	}
	removed, err := namesOf(s.Prune(ctx, policy))
	return removed, errors.Join(err, s.Close())
}

// pruneTails removes what resumes have kept of a job's files.
func pruneTails(job jobs.Local, dryRun bool) (removed []string, err error) {
	if _, err := store.View(job.Dir); err != nil { // what names the files must be root's
		return nil, refusedError{err}
	}
	if !dryRun {
		return jobs.RemoveTails(job.Dir)
	}
	all, err := jobs.Tails(job.Dir)
	for _, kept := range all {
		removed = append(removed, kept.Path)
	}
	return removed, err
}

func namesOf(all []store.Checkpoint, err error) ([]string, error) {
	var names []string
	for _, c := range all {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return names, err
}
