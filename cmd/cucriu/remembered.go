package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cucriu/internal/jobs"
	"cucriu/internal/kit/durable"
)

// notRemembered are the options of cucriu run that belong to one start, or to this host.
var notRemembered = []string{
	"dir", "image", "copy-image", "private", "takeover", "adopt", "criu", "quiet", "verbose", "no-checkpoints", "pidfile",
	"tty", // of earlier versions
}

// rememberedFlags returns the options of cucriu run that are set and not as they are by default, in the
// form --name=value.
func rememberedFlags(set *pflag.FlagSet) []string {
	var args []string
	set.Visit(func(f *pflag.Flag) {
		if slices.Contains(notRemembered, f.Name) || f.Value.String() == f.DefValue {
			return
		}
		values := []string{f.Value.String()}
		if list, is := f.Value.(pflag.SliceValue); is {
			values = list.GetSlice()
		}
		for _, value := range values {
			if value != "" { // which is the default of all that are text
				args = append(args, "--"+f.Name+"="+value)
			}
		}
	})
	return args
}

// remembers reports whether a cucriu run is of a job that was run with an option last.
func remembers(cmd *cobra.Command, name string) bool {
	dir := cmd.Flags().Lookup("dir")
	if cmd.Name() != "run" || dir == nil || durable.CheckPath("job directory", dir.Value.String(), 0) != nil {
		return false
	}
	last, _ := jobs.Flags(dir.Value.String())
	return slices.ContainsFunc(last, func(option string) bool { return strings.HasPrefix(option, "--"+name+"=") })
}

// recallFlags sets the options with which the job of a directory was run last, except those that are
// given now, and says so.
func recallFlags(cmd *cobra.Command, dir string) error {
	if durable.CheckPath("job directory", dir, 0) != nil {
		return nil // jobs.Run refuses it
	}
	last, err := jobs.Flags(dir)
	if err != nil {
		return runError{err}
	}
	given := make(map[string]bool)
	cmd.Flags().Visit(func(f *pflag.Flag) { given[f.Name] = true })
	var used []string
	for _, option := range last {
		name, value, _ := strings.Cut(strings.TrimPrefix(option, "--"), "=")
		if given[name] || slices.Contains(notRemembered, name) {
			continue
		}
		if err := cmd.Flags().Set(name, value); err != nil {
			return runError{fmt.Errorf("%s was run with %s, which this cucriu does not accept: give the command and all options again: %w", dir, option, err)}
		}
		if used = append(used, "--"+name); value != "true" {
			used = append(used, shortDuration(value))
		}
	}
	if len(used) > 0 && !isSet(cmd, "quiet") {
		say("using options of " + dir + ": " + strings.Join(used, " "))
	}
	return nil
}

// shortDuration leaves out the zeros of a duration such as 1h0m0s.
func shortDuration(text string) string {
	if short, is := strings.CutSuffix(text, "m0s"); is {
		text = short + "m"
	}
	if short, is := strings.CutSuffix(text, "h0m"); is {
		text = short + "h"
	}
	return text
}
