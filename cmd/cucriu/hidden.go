package main

import (
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/internal/jobs/inside"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/kit/files"
	"cucriu/internal/kit/self"
	"cucriu/internal/migrate"
)

// The clocks of a time namespace can be set by the main thread only, and only here is it sure
// which thread that is.
func init() {
	if len(os.Args) > 1 && os.Args[1] == sandbox.CommandUnshare {
		runtime.LockOSThread()
	}
}

// hiddenCommands are those that nobody but this program itself starts.
func hiddenCommands() []*cobra.Command {
	return append(asRoot(
		// What a dump or restore starts as its watcher.
		hidden("watch DIR", oneArgument("one session's directory"), withHook(func(_ *cobra.Command, hook *hooks.Hook, args []string) error {
			self.LimitMemory()
			return hooks.Watch(hook, args[0])
		})),
	),
		// What makes a job's sandbox.
		inDirectory(sandbox.CommandUnshare, sandbox.Unshare), inDirectory(sandbox.CommandInit, sandbox.Init), inDirectory(sandbox.CommandKeep, sandbox.Keep),
		// What works in a job's sandbox for the supervisor.
		hidden(inside.Command, noArguments, withHook(func(cmd *cobra.Command, hook *hooks.Hook, _ []string) error {
			self.LimitMemory()
			return inside.Serve(cmd.Context(), hook, os.Getenv("CUCRIU_CRIU"), os.Stdin, os.Stdout)
		})),
		// The first process of the sandbox of a trial restore.
		hidden(checkpoint.CommandProbe, noArguments, func(cmd *cobra.Command, _ []string) error {
			return checkpoint.ProbeInside(cmd.Context(), os.Stdin, os.Stdout, files.PutBackOnTrial)
		}))
}

func hidden(use string, args cobra.PositionalArgs, run func(*cobra.Command, []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Hidden: true, Args: args, RunE: run}
}

func inDirectory(name string, do func(dir string) error) *cobra.Command {
	return hidden(name+" DIR", cobra.ExactArgs(1), func(_ *cobra.Command, args []string) error { return do(args[0]) })
}

func receiveCommand() *cobra.Command {
	var o migrate.ReceiveOptions
	var relay string
	cmd := &cobra.Command{
		Use:    "receive",
		Hidden: true, // people start cucriu migrate
		Short:  "The destination side of cucriu migrate, which starts it through ssh",
		Long: `
It talks to the source over its standard input and output. To give it options,
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
			return migrate.Receive(cmd.Context(), hook, os.Stdin, os.Stdout, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&relay, "relay", "", "connect the standard streams to this address of the host itself (cucriu migrate --via ssh sets this)")
	flags.StringVar(&o.Stage, "stage", "", "a directory for the image (default: /dev/shm, in memory)")
	flags.StringArrayVar(&o.Bind, "bind", nil, "an address on which to receive the data (default: all); may be repeated")
	portsFlag(cmd, &o.Ports, "a port on which to receive the data, or a range such as 7000-7010 (default: any)")
	criuFlag(cmd, &o.Criu, "path of the criu to run")
	return cmd
}
