package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"cucriu/hooks"
	"cucriu/internal/migrate"
	"cucriu/internal/migrate/commit"
	"cucriu/internal/watch"
)

func recoverCommand() *cobra.Command {
	var take, drop string
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Bring back every job whose dump or restore was cut off and that nobody watches",
		Long: `
After a dump that failed, the watcher brings the job back by itself. If the
watcher, too, was killed, this command does what it would have done. It waits
for a program that was killed and is not gone yet. Sessions whose criu, hook or
watcher is still at work are named, and left alone. It can be run at any time,
and again. The exit status is 4 if a job is still not back.

Of a migration that was cut off, it tells the destination what the source has
decided. A destination that was promised a decision and cannot get one, because
the source is out of reach, keeps its copy stopped. A person may decide there:
  --take ID  lets the job run here. ` + upper(commit.WhenToTake) + `.
  --drop ID  ends the copy here. ` + upper(commit.WhenToDrop) + `.`,
		Example: "  cucriu recover\n  cucriu recover --take 5c3a9be0d1f24c77",
		Args:    noArguments,
		RunE: withHook(func(cmd *cobra.Command, hook *hooks.Hook, _ []string) error {
			if take != "" || drop != "" {
				return settle(cmd, hook, take, drop)
			}
			var recovered []hooks.Status
			var lines []string
			err := atSignal(cmd, say, "what is not back yet is left to the next cucriu recover", func() (err error) {
				recovered, err = watch.Recover(cmd.Context(), hook)
				for _, s := range recovered {
					if s.Outcome != "" { // otherwise the error reports it
						lines = append(lines, fmt.Sprintf("%s %v: %s: %s", s.Kind, s.PIDs(), s.Outcome, s.Message))
					}
				}
				migrations, migrateErr := migrate.Recover(cmd.Context(), hook)
				lines = append(lines, migrations...)
				return errors.Join(err, migrateErr)
			})
			if len(lines) == 0 && err == nil {
				lines = []string{"nothing to recover"}
			}
			return errors.Join(err, show(cmd, recovered, func(out io.Writer) { io.WriteString(out, strings.Join(append(lines, ""), "\n")) }))
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&take, "take", "", "let the copy of this migration run here, in place of its source's decision")
	flags.StringVar(&drop, "drop", "", "end the copy of this migration here, in place of its source's decision")
	jsonFlag(cmd)
	return cmd
}

// settle decides in place of a source that cannot be asked.
func settle(cmd *cobra.Command, hook *hooks.Hook, take, drop string) error {
	if take != "" && drop != "" {
		return usageError{errors.New("either --take or --drop")}
	}
	message, err := migrate.Settle(context.WithoutCancel(cmd.Context()), hook, take+drop, take != "")
	if err == nil {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), message)
	}
	return err
}

// upper begins a text with a capital letter.
func upper(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
