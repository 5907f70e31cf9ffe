package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cucriu/hooks"
)

// The exit statuses. README documents them; they do not change.
const (
	exitFailed  = 1 // the job is as it was before, or its image is intact and complete
	exitUsage   = 2 // nothing was done
	exitRefused = 3 // by a check, before anything was touched
	exitNotBack = 4 // the job is not back yet: cucriu recover
	exitEnded   = 5 // the job, or a part of it, ended meanwhile
	exitSignal  = 128
)

// usageError is wrong usage of the command line.
type usageError struct{ error }

// exitCode is the exit status for an error.
func exitCode(ctx context.Context, err error) int {
	var own interface{ ExitCode() int }
	var signalled *signalError
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(usageError)):
		return exitUsage
	case errors.Is(err, hooks.ErrNotBack):
		return exitNotBack
	case errors.Is(err, hooks.ErrEnded):
		return exitEnded
	case errors.As(err, new(*hooks.RefusedError)):
		return exitRefused
	case errors.As(err, &own):
		return own.ExitCode()
	case errors.As(context.Cause(ctx), &signalled):
		return exitSignal + int(signalled.signal)
	}
	return exitFailed
}

// signalError is why everything is given up: somebody has sent a signal.
type signalError struct{ signal unix.Signal }

func (e *signalError) Error() string { return "got " + unix.SignalName(e.signal) }

// untilSignal is a context that ends with the first signal that asks this
// program to end. Further ones change nothing: what was begun is undone.
func untilSignal() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	go func() { cancel(&signalError{(<-signals).(unix.Signal)}) }()
	// Whoever reads our output may go before a job is back.
	signal.Ignore(unix.SIGPIPE)
	return ctx
}

// exitStatus is the status of a job that was run in the foreground.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("the job ended with status %d", int(s)) }
func (s exitStatus) ExitCode() int { return int(s) }

// noArguments is [cobra.NoArgs] as wrong usage.
func noArguments(cmd *cobra.Command, args []string) error {
	if err := cobra.NoArgs(cmd, args); err != nil {
		return usageError{err}
	}
	return nil
}
