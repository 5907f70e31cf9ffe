package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// execute runs the command that the command line names. An error from before the command has
// begun is wrong usage, whichever part of cobra has found it, and is reported in one line.
func execute(ctx context.Context, root *cobra.Command) error {
	root.SetHelpCommand(helpCommand())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	begun := false
	noteBegin(root, &begun)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil && !cmd.Runnable() {
		err = checkNamed(cmd)
	}
	if err == nil || begun {
		return err
	}
	text := strings.NewReplacer("\n\nDid you mean this?\n\t", ": did you mean ", "\n\t", " or ", `required flag(s) "pid" not set`, "name a process with -p").Replace(err.Error())
	text = strings.TrimSpace(text) + advice(cmd, err)
	return usageError{fmt.Errorf("%s (see %s --help)", text, cmd.CommandPath())}
}

// noteBegin makes every command note that it has begun.
func noteBegin(cmd *cobra.Command, begun *bool) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*begun = true
			return run(cmd, args)
		}
	}
	for _, command := range cmd.Commands() {
		noteBegin(command, begun)
	}
}

// checkNamed fails if a command that only has subcommands printed its help although nobody
// asked for help: then no known subcommand was named.
func checkNamed(cmd *cobra.Command) error {
	asked := func(flag string) bool {
		is, err := cmd.Flags().GetBool(flag)
		return err == nil && is
	}
	args := cmd.Flags().Args()
	switch {
	case asked("help"):
		return nil
	case len(args) > 0:
		return fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
	case asked("version") || cmd.IsAdditionalHelpTopicCommand():
		return nil
	}
	return errors.New("name a command")
}

// helpCommand is cobra's help command, except that an unknown topic is wrong usage.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Show the help of a command, or about a topic",
		Example: "  cucriu help dump\n  cucriu help exit-status",
		Args: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err == nil && found != cmd.Root() && len(rest) > 0 {
				err = fmt.Errorf("unknown help topic %q", strings.Join(args, " "))
			}
			return err
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			found, _, err := cmd.Root().Find(args)
			var names []string
			if err == nil {
				for _, command := range found.Commands() {
					if command.IsAvailableCommand() || command.IsAdditionalHelpTopicCommand() {
						names = append(names, cobra.CompletionWithDesc(command.Name(), command.Short))
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			found, _, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			found.InitDefaultHelpFlag()
			found.InitDefaultVersionFlag()
			return found.Help()
		},
	}
}

// noArguments refuses arguments that do not belong to an option.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		err := fmt.Errorf("argument %q: %s takes none but its options", args[0], cmd.CommandPath())
		if _, notPID := parsePID(args[0]); notPID == nil {
			for _, name := range []string{"tree", "pid"} {
				if flag := cmd.Flags().Lookup(name); flag != nil {
					return fmt.Errorf("%w: name a process with -%s %s", err, flag.Shorthand, args[0])
				}
			}
		}
		if flag := cmd.Flags().Lookup("images-dir"); flag != nil {
			return fmt.Errorf("%w: name the image directory with -D", err)
		}
		return err
	}
	return nil
}

// oneArgument requires exactly one argument, which the text what describes.
func oneArgument(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return fmt.Errorf("%s takes one argument, %s, and was given %d: %q", cmd.CommandPath(), what, len(args), args)
		}
		return nil
	}
}
