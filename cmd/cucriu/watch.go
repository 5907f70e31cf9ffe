package main

import (
	"github.com/spf13/cobra"

	"cucriu/hooks/preflight"
	"cucriu/internal/watcher"
)

// watchCommand is the command that a dump or restore starts as its watcher.
func watchCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "watch DIR",
		Hidden: true,
		Args:   oneArgument("a session's directory"),
		RunE: func(_ *cobra.Command, args []string) error {
			hook, err := newHook()
			if err != nil {
				return err
			}
			preflight.LimitOwnMemory()
			return watcher.Run(hook, args[0])
		},
	}
}
