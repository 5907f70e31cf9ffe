package main

import (
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/jobs"
	"cucriu/hooks/jobs/files"
	"cucriu/hooks/jobs/place"
	"cucriu/hooks/migrate"
	"cucriu/hooks/preflight"
	"cucriu/internal/watcher"
)

// The clocks of a time namespace can be set by the main thread only, and only here is it sure
// which thread that is.
func init() {
	if len(os.Args) > 1 && os.Args[1] == place.CommandUnshare {
		runtime.LockOSThread()
	}
}

// sandboxCommands are the hidden commands by which a job's sandbox is made.
func sandboxCommands() []*cobra.Command {
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

// insideCommand works in a job's sandbox for the supervisor.
func insideCommand() *cobra.Command {
	return &cobra.Command{
		Use: jobs.CommandInside, Hidden: true, Args: noArguments,
		RunE: withHook(func(cmd *cobra.Command, hook *hooks.Hook, _ []string) error {
			preflight.LimitOwnMemory()
			return jobs.Inside(cmd.Context(), hook, os.Getenv("CUCRIU_CRIU"), os.Stdin, os.Stdout)
		}),
	}
}

// watchCommand is the command that a dump or restore starts as its watcher.
func watchCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "watch DIR",
		Hidden: true,
		Args:   oneArgument("a session's directory"),
		RunE: withHook(func(_ *cobra.Command, hook *hooks.Hook, args []string) error {
			preflight.LimitOwnMemory()
			return watcher.Run(hook, args[0])
		}),
	}
}

func receiveCommand() *cobra.Command {
	var o migrate.ReceiveOptions
	var longJob bool
	var relay string
	cmd := &cobra.Command{
		Use:    "receive",
		Hidden: true, // people start cucriu migrate
		Short:  "The destination's side of cucriu migrate, which starts it through ssh",
		Long: `The destination's side of cucriu migrate, which starts it through ssh.

It talks with the source over its standard input and output. To give it options,
name them in --remote-cucriu at the source, or in a wrapper there.`,
		Example: `  cucriu migrate -t 4711 --to gpu-b       # runs: ssh gpu-b cucriu receive`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if relay != "" {
				return migrate.Relay(cmd.Context(), os.Stdin, os.Stdout, relay)
			}
			hook, err := newHook()
			if err != nil {
				return err
			}
			if longJob {
				return migrate.ReceiveJob(cmd.Context(), hook, os.Stdin, os.Stdout, o)
			}
			return migrate.Receive(cmd.Context(), hook, os.Stdin, os.Stdout, o)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&longJob, "job", false, "receive a long job (cucriu migrate --job says so itself)")
	flags.StringVar(&relay, "relay", "", "join the standard streams to this address of the host itself (cucriu migrate --via ssh says so itself)")
	flags.StringVar(&o.Stage, "stage", "", "a directory for the image (default: /dev/shm, in memory)")
	flags.StringArrayVar(&o.Bind, "bind", nil, "an address to receive the data at (default: all); may be repeated")
	flags.StringVar(&o.Ports, "ports", "", "a port to receive the data at, or a range, such as 7000-7010 (default: any)")
	criuFlag(cmd, &o.Criu, "the criu to run")
	return cmd
}

const helperName = "calibrate-helper"

// calibrateHelperCommand is what check --calibrate starts two of.
func calibrateHelperCommand() *cobra.Command {
	return &cobra.Command{
		Use: helperName, Hidden: true, Args: noArguments,
		RunE: withHook(func(cmd *cobra.Command, hook *hooks.Hook, _ []string) error {
			return hook.Host().CalibrationHelper(cmd.InOrStdin(), cmd.OutOrStdout())
		}),
	}
}
