package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"cucriu/cudackpt"
	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/internal/migrate"
	"cucriu/internal/migrate/commit"
)

func recoverCommand() *cobra.Command {
	var take, drop string
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Recover every job whose dump or restore was interrupted and that has no watcher",
		Long: `
After a failed dump, the watcher restores the job by itself. If the watcher was
killed, too, this command does what it would have done. It waits for killed programs
that have not exited yet. Sessions whose criu, hook or watcher is still working are
listed and left alone. It can be run at any time, and repeatedly. The exit status is
4 if a job is still not recovered.

For a migration that was interrupted, it tells the destination what the source has
decided. A destination that awaits a decision and cannot get one, because the source
is unreachable, keeps its copy stopped. The administrator may decide there:
  --take ID  lets the job run here. ` + upper(commit.WhenToTake) + `.
  --drop ID  ends the copy here. ` + upper(commit.WhenToDrop) + `.
At the source of a long job, if the destination is gone permanently:
  --take ID  lets a job that has left run here again.
  --drop ID  ends the move of a job that stays here, without telling the destination.`,
		Example: "  cucriu recover\n  cucriu recover --take 5c3a9be0d1f24c77",
		Args:    noArguments,
		RunE: withHook(func(cmd *cobra.Command, hook *hooks.Hook, _ []string) error {
			if take != "" || drop != "" {
				return settle(cmd, hook, take, drop)
			}
			var recovered []checkpoint.Status
			var lines []string
			err := atSignal(cmd, say, "jobs that are not recovered yet are left to the next cucriu recover", func() (err error) {
				recovered, err = checkpoint.Recover(cmd.Context(), hook)
				for _, s := range recovered {
					if s.Outcome != "" { // otherwise the error reports it
						lines = append(lines, fmt.Sprintf("%s of process %s: %s: %s", s.Kind, somePIDs(s.PIDs()), s.Outcome, s.Message))
					}
				}
				migrations, migrateErr := migrate.Recover(cmd.Context(), hook)
				lines = append(lines, migrations...)
				return errors.Join(err, migrateErr)
			})
			return errors.Join(err, warned(show(cmd, recovered, func(out io.Writer) {
				if len(lines) == 0 && err == nil {
					lines = slices.Concat([]string{"nothing to recover"}, leftOpen(hook.Config.RunDir), leftBehind(cmd.Context(), hook))
				}
				_, _ = io.WriteString(out, strings.Join(append(lines, ""), "\n"))
			})))
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&take, "take", "", "let the copy of this migration run here, instead of waiting for its source's decision")
	flags.StringVar(&drop, "drop", "", "end the copy of this migration here, instead of waiting for its source's decision; or end a move from here whose destination is gone")
	jsonFlag(cmd)
	return cmd
}

// leftOpen says of each session that is open and not to be recovered what would bring it to its end.
func leftOpen(runDir string) (lines []string) {
	sessions, _ := checkpoint.Sessions(runDir) // without them it is still true that there is nothing to recover
	for _, s := range sessions {
		why := s.Message
		switch {
		case s.Outcome != "":
			continue
		case s.Elsewhere:
			why = "it is left to the programs of another pid namespace"
		case s.Suspended():
			lines = append(lines, fmt.Sprintf("process %s is suspended, and stays so: cucriu resume -p %s resumes it", somePIDs(s.PIDs()), somePIDs(s.PIDs())))
			continue
		case why == "":
			why = "cucriu status shows it"
		}
		lines = append(lines, fmt.Sprintf("%s %s stays open: %s", s.Kind, somePIDs(s.PIDs()), why))
	}
	return lines
}

// leftBehind says which CUDA processes are locked by no session or were restored without the hook, and hang for that.
func leftBehind(ctx context.Context, hook *hooks.Hook) (lines []string) {
	processes, _ := checkpoint.Processes(ctx, hook) // without a driver none is locked
	for _, p := range processes {
		if p.Unhooked {
			lines = append(lines, p.Note)
		}
		if p.State == cudackpt.StateLocked.String() {
			lines = append(lines, fmt.Sprintf("process %d (%s) is locked: %s", p.PID, p.Name, p.Remedy()))
		}
	}
	return lines
}

// settle decides in place of a source that cannot be asked.
func settle(cmd *cobra.Command, hook *hooks.Hook, take, drop string) error {
	if take != "" && drop != "" {
		return usageError{errors.New("--take and --drop cannot be combined")}
	}
	message, err := migrate.Settle(context.WithoutCancel(cmd.Context()), hook, take+drop, take != "")
	if err != nil {
		return err
	}
	report := struct {
		Migration string `json:"migration"`
		Message   string `json:"message"`
	}{take + drop, message}
	return warned(show(cmd, report, func(out io.Writer) { fmt.Fprintln(out, message) }))
}

// upper begins a text with a capital letter.
func upper(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
