package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs"
	"cucriu/internal/jobs/life"
	"cucriu/internal/jobs/ready"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/units"
)

func jobsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "Long jobs and their checkpoints: list, verify, prune, pin, rm; checkpoint, pause, stop",
		Long: `Long jobs and their checkpoints: those that cucriu run --dir DIR manages.

A job is named by its directory or, on the host that runs it, by its name. An argument
with a slash in it is a directory.`,
		SuggestFor: []string{"list", "show", "prune", "pin", "unpin", "checkpoint", "pause", "stop", "rm"},
		Example:    "  cucriu jobs list\n  cucriu jobs list train\n  cucriu jobs checkpoint /var/lib/jobs/train",
	}
	cmd.AddCommand(asRoot(jobsListCommand(), jobsShowCommand(), jobsVerifyCommand(), jobsPruneCommand(), jobsPinCommand(true), jobsPinCommand(false), jobsRemoveCommand())...)
	cmd.AddCommand(asRoot(askCommands()...)...)
	return cmd
}

// jobArgument requires a job, and checkpoints of it: at least so many, and at most; -1 is any
// number.
func jobArgument(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for _, arg := range args {
			if arg == "" {
				return errors.New("an argument is empty")
			}
		}
		switch {
		case len(args) == 0:
			return errors.New("name the job, by its name or its directory")
		case len(args)-1 < least:
			return errors.New("name the checkpoint: cucriu jobs list JOB shows them")
		case most == 0 && len(args) > 1 && cmd.Name() == "rm":
			return fmt.Errorf("argument %q: rm removes a whole job; cucriu jobs prune %s --keep N removes checkpoints", args[1], args[0])
		case most >= 0 && len(args)-1 > most:
			return fmt.Errorf("argument %q: %s takes %s", args[most+1], cmd.CommandPath(), []string{"a job only", "a job and one checkpoint"}[most])
		}
		return nil
	}
}

func findJob(arg string) (*hooks.Hook, jobs.Local, error) {
	hook, err := newHook()
	if err != nil {
		return nil, jobs.Local{}, err
	}
	job, err := jobs.Find(hook.Config.RunDir, arg)
	return hook, job, err
}

// jobView is a job, with its checkpoints open to look at them.
type jobView struct {
	hook   *hooks.Hook
	job    jobs.Local
	store  *store.Store
	picked []store.Checkpoint
}

// viewJob finds the job that the first argument names, and its checkpoints that the others name:
// all, if there are no others.
func viewJob(args []string) (v jobView, err error) {
	if v.hook, v.job, err = findJob(args[0]); err != nil {
		return v, err
	}
	if v.store, err = store.View(v.job.Dir); err != nil {
		return v, preflight.AsRefusal(err)
	}
	all, err := v.store.Checkpoints()
	if err != nil || len(args) == 1 {
		v.picked = all
		return v, err
	}
	for _, name := range args[1:] {
		at := slices.IndexFunc(all, func(c store.Checkpoint) bool { return c.Name == name || strings.TrimLeft(c.Name, "0") == name })
		if at < 0 {
			return v, preflight.AsRefusal(fmt.Errorf("there is no checkpoint %q: cucriu jobs list %s shows them all", name, args[0]))
		}
		v.picked = append(v.picked, all[at])
	}
	return v, nil
}

// completeJob completes the name of a job, and with checkpoints also their names.
func completeJob(checkpoints bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		var names []string
		switch {
		case len(args) == 0:
			if hook, err := newHook(); err == nil {
				all, _ := jobs.Locals(hook.Config.RunDir)
				for _, l := range all {
					names = append(names, cobra.CompletionWithDesc(l.Name, l.Dir))
				}
			}
			return names, cobra.ShellCompDirectiveDefault // or a directory
		case checkpoints:
			v, _ := viewJob(args[:1])
			for _, c := range v.picked {
				text := "cannot be used"
				if !c.Damaged() {
					text = ago(c.CreatedAt) + " old"
				}
				names = append(names, cobra.CompletionWithDesc(c.Name, text))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// ago says how long ago something was, such as 3m or 5h12m.
func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return short(time.Since(t))
}

// short says how long something is, with no more than matters.
func short(d time.Duration) string {
	d = max(0, d)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

// askCommands are those that the supervisor of a job carries out.
func askCommands() []*cobra.Command {
	return []*cobra.Command{
		askCommand(life.AskCheckpoint, "Make a checkpoint of a long job now", `Make a checkpoint of a long job now, and wait until it is in the job's directory.

If one is already in progress, this one follows it. If the command is interrupted,
the checkpoint that has begun is still completed.

With --when it is made once the job is ready: the condition is looked at again and
again, without an end unless --timeout is given. The connection of a look is closed
before. If the job ends first, the exit status is 5; after --timeout it is 1.

criu dumps no job for which a connection waits. So for a server that listens long before
it takes connections, use file: or log:, or no checkpoint can be made until it does.`),
		askCommand(life.AskPause, "Pause a long job, and free its GPUs", `Pause a long job, with its GPU memory moved into host memory, so that others can
use its GPUs. A job without CUDA is only stopped.

A checkpoint is made first, because a paused job lives in the memory of this host
only. No more are made until cucriu jobs resume, and the job stays paused if its
cucriu run is killed.`),
		askCommand(life.AskResume, "Resume a paused long job", `Resume a paused long job. If its GPUs lack the memory, this is refused and the job
stays paused.`),
		askCommand(life.AskStop, "Make a last checkpoint of a long job, and end it", `Make a last checkpoint of a long job, and end it, as at a preemption: its cucriu run
ends with --requeue-status, and the same command line resumes it from there, on any
host.

If the checkpoint cannot be made, the job keeps running, and the exit status is 1. To
end it anyway, send SIGTERM to its cucriu run.`),
	}
}

func askCommand(op life.Op, short, long string) *cobra.Command {
	r := jobs.Request{Op: op}
	cmd := &cobra.Command{
		Use: string(op) + " DIR|NAME", Short: short, Long: long, SuggestFor: map[life.Op][]string{life.AskStop: {"kill"}}[op],
		Example:           fmt.Sprintf("  cucriu jobs %s train\n  cucriu jobs %s /var/lib/jobs/train", op, op),
		Args:              jobArgument(0, 0),
		ValidArgsFunction: completeJob(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case r.When == "" && r.Timeout != 0:
				return usageError{errors.New("--timeout applies only with --when")}
			case r.When != "":
				r.Op = life.AskWhen
			}
			hook, job, err := findJob(args[0])
			if err != nil {
				return err
			}
			p := newProgress(cmd)
			answer, err := jobs.Ask(cmd.Context(), hook.Config.RunDir, job, r, p.expect)
			p.stop()
			if err != nil {
				return err
			}
			return warned(show(cmd, answer, func(out io.Writer) { fmt.Fprintln(out, answer.Message) }))
		},
	}
	if op == life.AskCheckpoint {
		cmd.Use += " [--when CONDITION]"
		cmd.Example += "\n  cucriu jobs checkpoint server --when http://localhost:8000/health --timeout 5m"
		cmd.Flags().Var(&value{kind: "condition", set: func(text string) error {
			r.When = text
			_, err := ready.Parse(text)
			return err
		}}, "when", "wait until this is met: "+ready.Help)
		timeoutFlag(cmd, &r.Timeout, "timeout", "how long to wait for --when (default: as long as it takes)")
	}
	jsonFlag(cmd)
	return cmd
}

func jobsPinCommand(pin bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "pin DIR|NAME CHECKPOINT",
		Short:   "Keep a checkpoint from being pruned",
		Example: "  cucriu jobs pin train 000012",
	}
	said := "checkpoint %s of %s is pinned\n"
	if !pin {
		cmd.Use, cmd.Short, cmd.Example = "unpin DIR|NAME CHECKPOINT", "Allow a checkpoint to be pruned again", "  cucriu jobs unpin train 000012"
		said = "checkpoint %s of %s is not pinned\n"
	}
	cmd.Long = cmd.Short + `.

A pinned checkpoint is never removed to make room, and does not count towards --keep.
This can be done while the job runs.`
	cmd.Args = jobArgument(1, 1)
	cmd.ValidArgsFunction = completeJob(true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		v, err := viewJob(args)
		if err != nil {
			return err
		}
		c := v.picked[0]
		if c.Err != nil && pin {
			return preflight.AsRefusal(c.Err)
		}
		if err := v.store.Pin(c.Name, pin); err != nil {
			return err
		}
		report := struct {
			Job        string `json:"job"`
			Checkpoint string `json:"checkpoint"`
			Pinned     bool   `json:"pinned"`
		}{v.job.Name, c.Name, pin}
		return warned(show(cmd, report, func(out io.Writer) { fmt.Fprintf(out, said, c.Name, v.job.Name) }))
	}
	jsonFlag(cmd)
	return cmd
}

func jobsPruneCommand() *cobra.Command {
	var keep int
	var maxBytes int64
	var tails, dryRun bool
	cmd := &cobra.Command{
		Use:   "prune DIR|NAME [--keep N] [--max-bytes SIZE]",
		Short: "Remove the oldest checkpoints of a long job",
		Long: `
Only checkpoints older than a verified one are removed, and never a pinned one. If
the job runs, its supervisor does it.

--tails removes the backups of newer file content that were kept when the job was
resumed from an older checkpoint (*.cucriu-DATE); cucriu jobs show reports their size.`,
		Example:           "  cucriu jobs prune train --keep 2\n  cucriu jobs prune /var/lib/jobs/train --max-bytes 500G --dry-run\n  cucriu jobs prune train --tails",
		Args:              jobArgument(0, 0),
		ValidArgsFunction: completeJob(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case !cmd.Flags().Changed("keep") && maxBytes == 0 && !tails:
				return usageError{errors.New("give --keep or --max-bytes, or --tails")}
			case cmd.Flags().Changed("keep") && keep < 1:
				return usageError{fmt.Errorf("--keep %d: must be at least 1", keep)}
			}
			hook, job, err := findJob(args[0])
			if err != nil {
				return err
			}
			var removed []string
			if keep > 0 || maxBytes > 0 {
				removed, err = prune(cmd.Context(), hook, job, store.Policy{Keep: keep, MaxBytes: maxBytes, DryRun: dryRun})
			}
			if err == nil && tails {
				var more []string
				more, err = pruneTails(job, dryRun)
				removed = append(removed, more...)
			}
			return errors.Join(warned(show(cmd, append([]string{}, removed...), func(out io.Writer) { // not nil: null is no list in JSON
				switch {
				case len(removed) > 0 && dryRun:
					fmt.Fprintln(out, "would be removed:", strings.Join(removed, " "))
				case len(removed) > 0:
					fmt.Fprintln(out, "removed:", strings.Join(removed, " "))
				case err == nil:
					fmt.Fprintln(out, "nothing to remove")
				}
				if stay, until := stillKept(job.Dir, store.Policy{Keep: keep}, removed); err == nil && len(stay) > 0 {
					fmt.Fprintf(out, "%s: stays until %s is verified: cucriu jobs verify %s\n", strings.Join(stay, " "), until, args[0])
				}
			})), err)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&keep, "keep", 0, "how many to keep, not counting pinned ones")
	sizeFlag(cmd, &maxBytes, "max-bytes", "how much disk space all of them may take, such as 500G")
	flags.BoolVar(&tails, "tails", false, "remove the backups of the job's files that were kept at resumes")
	flags.BoolVar(&dryRun, "dry-run", false, "remove nothing: show what would be removed")
	jsonFlag(cmd)
	return cmd
}

// stillKept is [store.Policy.Unverified] of what is left without those that are removed.
func stillKept(dir string, policy store.Policy, removed []string) (stay []string, until string) {
	view, err := store.View(dir)
	if err != nil {
		return nil, ""
	}
	all, _ := view.Checkpoints()
	return policy.Unverified(slices.DeleteFunc(all, func(c store.Checkpoint) bool { return slices.Contains(removed, c.Name) }))
}

// prune removes checkpoints, through the supervisor of the job if there is one.
func prune(ctx context.Context, hook *hooks.Hook, job jobs.Local, policy store.Policy) ([]string, error) {
	if policy.DryRun {
		view, err := store.View(job.Dir)
		if err != nil {
			return nil, preflight.AsRefusal(err)
		}
		return namesOf(view.Prune(ctx, policy))
	}
	answer, err := jobs.Ask(ctx, hook.Config.RunDir, job, jobs.Request{Op: life.AskPrune, Prune: policy}, nil)
	if !errors.Is(err, jobs.ErrNoSupervisor) {
		return answer.Removed, err
	}
	// The store is given back afterwards, so that nobody may run the job now.
	if err := jobs.RequireGone(hook.Config.RunDir, job.Dir); err != nil {
		return nil, preflight.AsRefusal(fmt.Errorf("%s (%s): %w", job.Name, job.Dir, err))
	}
	s, err := store.Open(job.Dir, store.OpenOptions{})
	if err != nil {
		return nil, preflight.AsRefusal(err)
	}
	removed, err := namesOf(s.Prune(ctx, policy))
	return removed, errors.Join(err, s.Close())
}

// pruneTails removes what resumes have kept of a job's files.
func pruneTails(job jobs.Local, dryRun bool) (removed []string, err error) {
	if _, err := store.View(job.Dir); err != nil { // what names the files must be root's
		return nil, preflight.AsRefusal(err)
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

func jobsRemoveCommand() *cobra.Command {
	var yes, keepOutput bool
	cmd := &cobra.Command{
		Use:        "rm DIR|NAME [--yes]",
		SuggestFor: []string{"remove", "delete"},
		Short:      "Remove a long job that does not run: its checkpoints, output and records",
		Long: `
A job is not removed if it runs here, with or without a supervisor, if another host
owns it, or if its move to another host has not finished. What is in its directory and not
its own stays, and is named, as do the files that the job itself has written
elsewhere. If it has checkpoints, --yes is required.`,
		Example:           "  cucriu jobs rm train\n  cucriu jobs rm /var/lib/jobs/train --yes --keep-output",
		Args:              jobArgument(0, 0),
		ValidArgsFunction: completeJob(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			hook, job, err := findJob(args[0])
			if err != nil {
				return err
			}
			removal, err := jobs.Remove(cmd.Context(), hook, job, yes, keepOutput)
			if err != nil {
				return err
			}
			return warned(show(cmd, removal, func(out io.Writer) {
				fmt.Fprintf(out, "removed %s (%s)\n", removal.Job, removal.Dir)
				for _, path := range removal.Left {
					fmt.Fprintln(out, "left:", path)
				}
			}))
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "remove the checkpoints as well")
	cmd.Flags().BoolVar(&keepOutput, "keep-output", false, "keep output.log, and private/ of a job from an image")
	jsonFlag(cmd)
	return cmd
}

// verifyReport says in JSON how a checkpoint was found.
type verifyReport struct {
	Name  string `json:"name"`
	Whole bool   `json:"whole"`
	Bytes int64  `json:"bytes"`
	Error string `json:"error,omitempty"`
}

func jobsVerifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify DIR|NAME [CHECKPOINT...]",
		Short: "Read all checkpoints of a long job and verify their checksums",
		Long: `Read all checkpoints of a long job, or those that are named, and verify that they
are intact.

They are read from disk, on all processors, and every byte is checked against its
checksum. A checkpoint that is intact is marked as verified, one that is not as
damaged: cucriu jobs list shows it. The exit status is 1 if anything is damaged or
missing.`,
		Example:           "  cucriu jobs verify train\n  cucriu jobs verify /var/lib/jobs/train 000012",
		Args:              jobArgument(0, -1),
		ValidArgsFunction: completeJob(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := viewJob(args)
			if err != nil {
				return err
			}
			reports := []verifyReport{} // not nil: null is no list in JSON
			damaged, areLost := 0, true
			for _, c := range v.picked {
				err := verifyCheckpoint(cmd, v.store, c)
				if cmd.Context().Err() != nil {
					return fmt.Errorf("checkpoint %s: cancelled", c.Name)
				}
				r := verifyReport{Name: c.Name, Whole: err == nil, Bytes: c.Bytes}
				text := fmt.Sprintf("checkpoint %s is intact: %s", c.Name, units.Size(c.Bytes))
				if err != nil {
					damaged++
					areLost = areLost && errors.As(err, new(*store.DamageError))
					r.Error, text = err.Error(), err.Error()
				}
				reports = append(reports, r)
				if !asJSON(cmd) {
					fmt.Fprintln(cmd.OutOrStdout(), text)
				}
			}
			err = errors.Join(jobs.CheckMade(v.job), show(cmd, reports, func(out io.Writer) {
				if len(v.picked) == 0 {
					fmt.Fprintf(out, "%s (%s) has no checkpoint\n", v.job.Name, v.job.Dir)
				}
			}))
			if damaged > 0 {
				remedy := "cucriu run resumes from the newest usable one"
				switch {
				case len(args) > 1 || damaged < len(v.picked):
				case v.job.IsUp():
					remedy = "cucriu jobs checkpoint " + v.job.Name + " makes another"
				case areLost:
					remedy = jobs.LostRemedy(v.job.Name, v.job.Dir)
				}
				err = errors.Join(err, fmt.Errorf("%d of %s of %s cannot be used: %s", damaged, units.Count(len(v.picked), "checkpoint"), v.job.Name, remedy))
			}
			return err
		},
	}
	jsonFlag(cmd)
	return cmd
}

func verifyCheckpoint(cmd *cobra.Command, view *store.Store, c store.Checkpoint) error {
	var done atomic.Int64
	progress := newProgress(cmd)
	defer progress.stop()
	progress.measured("reading checkpoint "+c.Name, func() (int64, int64) { return done.Load(), c.Bytes })
	return view.Verify(cmd.Context(), c, runtime.GOMAXPROCS(0), func(bytes int) { done.Add(int64(bytes)) })
}
