package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// attach stays with a restored job that is our child. It passes signals on to the job's root
// process, and returns the root's exit status as an error. A shell job gets the terminal in the
// meantime.
func attach(root int, shellJob bool) error {
	process, err := os.FindProcess(root)
	if err != nil {
		return fmt.Errorf("the restored job: %w", err)
	}
	passed := make(chan os.Signal, 16)
	signal.Notify(passed, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH)
	go func() {
		for s := range passed {
			_ = process.Signal(s) // it may have ended
		}
	}()
	if shellJob {
		defer giveTerminal(root)()
	}
	state, err := process.Wait()
	if err != nil {
		return fmt.Errorf("wait for the restored job: %w", err)
	}
	status := state.Sys().(syscall.WaitStatus)
	switch {
	case status.Signaled():
		return exitStatus(exitSignal + int(status.Signal()))
	case status.ExitStatus() != 0:
		return exitStatus(status.ExitStatus())
	}
	return nil
}

// giveTerminal makes the job's process group the foreground group of our terminal, if we have
// one. It returns a function that takes the terminal back.
func giveTerminal(root int) func() {
	group, err := unix.Getpgid(root)
	ours, ttyErr := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	if err != nil || ttyErr != nil {
		return func() {}
	}
	signal.Ignore(unix.SIGTTOU) // setting the group back would send it to us
	_ = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, group)
	return func() { _ = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, ours) }
}
