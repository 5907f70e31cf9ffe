package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/proc"
)

// execute runs the command that the command line names. An error from before the command has
// begun is wrong usage, whichever part of cobra has found it, and is reported in cobra's words and one line.
func execute(ctx context.Context, root *cobra.Command) error {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	extendHelp(root)
	begun := false
	showHelp := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if cmd.Runnable() || checkNamed(cmd) == nil || cmd.Flags().NArg() == 0 {
			showHelp(cmd, args)
		}
	})
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		err := cmp.Or(cmd.ValidateRequiredFlags(), requireValues(cmd))
		begun = err == nil
		if begun && cmd.Name() != "version" && cmd.Name() != "run" {
			err = preflight.AsRefusal(proc.FitLimits(true))
		}
		return err
	}
	root.SetArgs(bareVerbosity(root, os.Args[1:]))
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil && !cmd.Runnable() {
		err = checkNamed(cmd)
	}
	if err == nil || begun {
		return err
	}
	oneLine := strings.NewReplacer("\n\nDid you mean this?\n\t", ": did you mean ", "\n\t", " or ")
	text := strings.TrimSpace(oneLine.Replace(err.Error())) + advice(cmd, err)
	return usageError{fmt.Errorf("%s (see %s --help)", text, cmd.CommandPath())}
}

// requireValues refuses options without a value, as of a variable that is not set. One that the job of cucriu run remembers is
// forgotten with that, but for the user: an empty one is root.
func requireValues(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, is := f.Value.(pflag.SliceValue); is {
			values = list.GetSlice()
		}
		if slices.Contains(values, "") && (f.Name == "user" || !remembers(cmd, f.Name)) {
			err = cmp.Or(err, fmt.Errorf("--%s is empty: give it a value, or leave it out", f.Name))
		}
	})
	return err
}

// bareVerbosity gives each -v that stands alone criu's value for it. pflag would take the next argument.
func bareVerbosity(root *cobra.Command, args []string) []string {
	cmd, _, _ := root.Find(args) // the root if it finds nothing
	for i, last := 0, len(args)-1; i <= last && cmd.Flags().Lookup("verbosity") != nil; i++ {
		if args[i] == "-v" && (i == last || strings.HasPrefix(args[i+1], "-")) {
			args[i] = "-v3"
		}
	}
	return args
}

// checkNamed fails if a command that only has subcommands printed its help although nobody
// asked for help: then no known subcommand was named.
func checkNamed(cmd *cobra.Command) error {
	args := cmd.Flags().Args()
	switch {
	case isSet(cmd, "help"):
		return nil
	case len(args) > 0:
		return fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(), didYouMean(cmd, "", args[0]))
	case isSet(cmd, "version") || cmd.IsAdditionalHelpTopicCommand():
		return nil
	}
	return errors.New("name a command")
}

// extendHelp has cobra's help command refuse an unknown topic, and complete the topics.
func extendHelp(root *cobra.Command) {
	help, _, err := root.Find([]string{"help"})
	if err != nil {
		return
	}
	complete := help.ValidArgsFunction
	help.Use, help.Short, help.Long = "help [COMMAND]", "Show the help of a command, or about a topic", ""
	help.Example = "  cucriu help dump\n  cucriu help exit-status"
	help.Args = func(_ *cobra.Command, args []string) error {
		found, rest, err := root.Find(args)
		if err == nil && found != root && len(rest) > 0 {
			err = fmt.Errorf("unknown help topic %q%s", strings.Join(args, " "), didYouMean(found, "", rest[0]))
		}
		return err
	}
	help.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		names, directive := complete(cmd, args, prefix)
		if topic := exitStatusTopic(); len(args) == 0 {
			names = append(names, cobra.CompletionWithDesc(topic.Name(), topic.Short))
		}
		return names, directive
	}
}

// noArguments refuses arguments that do not belong to an option.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("argument %q: %s takes no arguments, only options", args[0], cmd.CommandPath())
	}
	return nil
}

// oneArgument requires exactly one argument, which the text what describes.
func oneArgument(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return errors.New("name " + what)
		}
		return nil
	}
}

// advice says what was meant by an option that a command does not have; "" if nobody knows.
func advice(cmd *cobra.Command, err error) string {
	unknown := new(pflag.NotExistError)
	if !errors.As(err, &unknown) {
		return ""
	}
	name := unknown.GetSpecifiedName()
	switch {
	case cmd.Name() == "run" && name == "tty":
		return ": a job has its terminal from tmux: --wait-all -- tmux -S SOCKET new -d COMMAND"
	case len(name) < 2:
		return ""
	}
	// cobra knows which of several names are near.
	names := &cobra.Command{}
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden && !flag.Changed {
			names.AddCommand(&cobra.Command{Use: flag.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	near := didYouMean(names, "--", name)
	if near == "" && cmd.Name() == "run" {
		return ": options of the job's own program go after COMMAND"
	}
	return near
}

// elsewhere says of what people look for below jobs where it is.
var elsewhere = map[string]string{
	"start": "cucriu run --dir DIR -- COMMAND starts a job",
	"logs":  "what a job prints is in output.log in its directory",
	"log":   "what a job prints is in output.log in its directory",
}

// didYouMean names the subcommands of a command whose names are near, after a prefix; "" if none is.
func didYouMean(cmd *cobra.Command, prefix, name string) string {
	cmd.SuggestionsMinimumDistance = 2
	if hint := elsewhere[name]; hint != "" && cmd.Name() == "jobs" {
		return ": " + hint
	}
	near := cmd.SuggestionsFor(name)
	meant := func(command string) bool { // by another name that it is known by
		found, _, err := cmd.Find([]string{command})
		return err == nil && slices.Contains(found.SuggestFor, name)
	}
	if slices.ContainsFunc(near, meant) {
		near = slices.DeleteFunc(near, func(command string) bool { return !meant(command) })
	}
	near = slices.DeleteFunc(near, func(command string) bool { return command == "rm" && !meant(command) }) // it removes a job
	if len(near) == 0 {
		return ""
	}
	return ": did you mean " + prefix + strings.Join(near, " or "+prefix)
}
