package main

import (
	"os"

	"github.com/spf13/cobra"

	"cucriu/hooks"
	"cucriu/internal/watcher"
)

// watchCommand is what suspend and resume start beside themselves: if they are
// killed, it brings the processes back.
func watchCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "watch DIR",
		Short:  "Watch over a session (suspend and resume start this)",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			hook, err := newHook()
			if err != nil {
				return err
			}
			return watcher.Run(hook, args[0])
		},
	}
}

// newWatchedHook is a hook whose sessions are watched over by this program.
func newWatchedHook() (*hooks.Hook, error) {
	hook, err := newHook()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	hook.Watcher = []string{self, "watch"}
	return hook, nil
}
