package main

import (
	"os"

	"github.com/spf13/cobra"

	"cucriu/hooks/migrate"
)

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
	flags.StringVar(&o.Criu, "criu", os.Getenv("CUCRIU_CRIU"), "the criu to run (default: $CUCRIU_CRIU, else the system's)")
	return cmd
}
