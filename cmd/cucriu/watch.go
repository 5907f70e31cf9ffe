package main

import (
	"github.com/spf13/cobra"

	"cucriu/internal/watcher"
)

// watchCommand is what a dump or restore starts to be watched over.
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
			return watcher.Run(hook, args[0])
		},
	}
}
