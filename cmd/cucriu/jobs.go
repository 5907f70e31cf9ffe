package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"cucriu/hooks"
	"cucriu/hooks/jobs"
	"cucriu/hooks/jobs/store"
	"cucriu/internal/logging"
)

func jobsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "Long jobs and their checkpoints: list, verify, prune, pin; checkpoint, pause, stop",
		Long: `Long jobs and their checkpoints: those that cucriu run --dir DIR takes care of.

A job is named by its directory or, on the host that runs it, by its name. What has
a slash in it is a directory.`,
		Example: "  cucriu jobs list\n  cucriu jobs list train\n  cucriu jobs checkpoint /var/lib/jobs/train",
	}
	cmd.AddCommand(asRoot(jobsListCommand(), jobsShowCommand(), jobsVerifyCommand(), jobsPruneCommand(), jobsPinCommand(true), jobsPinCommand(false))...)
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
		case most >= 0 && len(args)-1 > most:
			return fmt.Errorf("argument %q: it takes %s", args[most+1], []string{"a job only", "a job and one checkpoint"}[most])
		}
		return nil
	}
}

// findJob finds the job that an argument names.
func findJob(arg string) (*hooks.Hook, jobs.Local, error) {
	hook, err := newHook()
	if err != nil {
		return nil, jobs.Local{}, err
	}
	job, err := jobs.Find(hook.Config.RunDir, arg)
	return hook, job, err
}

// viewJob finds the job that an argument names, and opens its checkpoints to look at them.
func viewJob(arg string) (*hooks.Hook, jobs.Local, *store.Store, error) {
	hook, job, err := findJob(arg)
	if err != nil {
		return nil, job, nil, err
	}
	view, err := store.View(job.Dir)
	if err != nil {
		return nil, job, nil, refusedError{err}
	}
	return hook, job, view, nil
}

// pickCheckpoints returns the checkpoints with these names, or all if there are no names.
func pickCheckpoints(view *store.Store, names []string) ([]store.Checkpoint, error) {
	if len(names) == 0 {
		return view.Checkpoints()
	}
	all, err := view.Checkpoints()
	if err != nil {
		return nil, err
	}
	var picked []store.Checkpoint
	for _, name := range names {
		c, err := pick(all, name)
		if err != nil {
			return nil, err
		}
		picked = append(picked, c)
	}
	return picked, nil
}

func pick(all []store.Checkpoint, name string) (store.Checkpoint, error) {
	for _, c := range all {
		if c.Name == name {
			return c, nil
		}
	}
	return store.Checkpoint{}, refusedError{fmt.Errorf("there is no checkpoint %q: cucriu jobs list JOB shows those that there are", name)}
}

// completeJob completes the name of a job, and with checkpoints also their names.
func completeJob(checkpoints bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		hook, err := newHook()
		if err != nil {
			return nil, cobra.ShellCompDirectiveDefault
		}
		if len(args) == 0 {
			return jobNames(hook), cobra.ShellCompDirectiveDefault // or a directory
		}
		if !checkpoints {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return checkpointNames(hook, args[0]), cobra.ShellCompDirectiveNoFileComp
	}
}

func jobNames(hook *hooks.Hook) []string {
	var names []string
	all, _ := jobs.Locals(hook.Config.RunDir)
	for _, l := range all {
		names = append(names, cobra.CompletionWithDesc(l.Name, l.Dir))
	}
	return names
}

func checkpointNames(hook *hooks.Hook, job string) []string {
	found, err := jobs.Find(hook.Config.RunDir, job)
	if err != nil {
		return nil
	}
	view, err := store.View(found.Dir)
	if err != nil {
		return nil
	}
	all, _ := view.Checkpoints()
	var names []string
	for _, c := range all {
		text := "cannot be used"
		if c.Err == nil {
			text = ago(c.CreatedAt) + " old"
		}
		names = append(names, cobra.CompletionWithDesc(c.Name, text))
	}
	return names
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

// ask has the supervisor of a job do something.
func ask(ctx context.Context, arg string, r jobs.Request, quiet bool) (jobs.Answer, error) {
	hook, job, err := findJob(arg)
	if err != nil {
		return jobs.Answer{}, err
	}
	return jobs.Ask(ctx, hook.Config.RunDir, job, r, func(text string) {
		if !quiet {
			fmt.Fprintf(logging.Stderr(), "cucriu: %s\n", text)
		}
	})
}
