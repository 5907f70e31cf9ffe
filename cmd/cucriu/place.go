package main

import (
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"cucriu/hooks/checkpoint"
	"cucriu/hooks/jobs"
	"cucriu/hooks/jobs/files"
	"cucriu/hooks/jobs/place"
	"cucriu/hooks/preflight"
)

// The clocks of a time namespace can be set by the main thread only, and only here is it sure
// which thread that is.
func init() {
	if len(os.Args) > 1 && os.Args[1] == place.CommandUnshare {
		runtime.LockOSThread()
	}
}

// placeCommands are the hidden commands by which a job's place is made.
func placeCommands() []*cobra.Command {
	return []*cobra.Command{
		hidden(place.CommandUnshare, place.Unshare),
		hidden(place.CommandInit, place.Init),
		hidden(place.CommandKeep, place.Keep),
		insideCommand(),
		probeCommand(),
	}
}

func hidden(name string, do func(dir string) error) *cobra.Command {
	return &cobra.Command{
		Use: name + " DIR", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return do(args[0]) },
	}
}

// probeCommand is the first process of the sandbox of a trial restore.
func probeCommand() *cobra.Command {
	return &cobra.Command{
		Use: checkpoint.CommandProbe, Hidden: true, Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return checkpoint.ProbeInside(cmd.Context(), os.Stdin, os.Stdout, files.PutBackOnTrial)
		},
	}
}

// insideCommand works in a job's place for the supervisor.
func insideCommand() *cobra.Command {
	return &cobra.Command{
		Use: jobs.CommandInside, Hidden: true, Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hook, err := newHook()
			if err != nil {
				return err
			}
			preflight.LimitOwnMemory()
			return jobs.Inside(cmd.Context(), hook, os.Getenv("CUCRIU_CRIU"), os.Stdin, os.Stdout)
		},
	}
}
