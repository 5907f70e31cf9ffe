package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// asRoot makes commands refuse to begin for a user who could not do what they do.
func asRoot(commands ...*cobra.Command) []*cobra.Command {
	for _, cmd := range commands {
		run := cmd.RunE
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err := requireRoot(cmd); err != nil {
				return err
			}
			return run(cmd, args)
		}
	}
	return commands
}

// requireRoot fails unless this program is root's, or has root's rights over processes.
func requireRoot(cmd *cobra.Command) error {
	const needed = 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_KILL | 1<<unix.CAP_SYS_ADMIN
	if os.Geteuid() == 0 {
		return nil // what root lacks in a container, the checks name
	}
	if has, err := (proc.System{}).Capabilities(); err == nil && has&needed == needed {
		return nil
	}
	return refusedError{fmt.Errorf("run as root: %s is not for user %d", cmd.CommandPath(), os.Geteuid())}
}
