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
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/job"
	"cucriu/internal/kit/logging"
	"cucriu/internal/kit/quote"
)

// The exit statuses. docs/exit-status.md documents them, so they must not change.
const (
	exitFailed  = 1 // the job is as it was before, or its image is unchanged
	exitUsage   = 2 // nothing was done
	exitRefused = 3 // by a check, before anything was touched
	exitNotBack = 4 // the job is not back yet; run cucriu recover
	exitEnded   = 5 // the job, or a part of it, has ended
	exitSignal  = 128
)

// exitStatusTopic is the help topic about the exit statuses.
func exitStatusTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-status",
		Short: "What the exit statuses say about a job",
		Long: `What the exit statuses say about a job, for all commands:

  0      success
  1      failed: the job is as it was before, or its image is unchanged
  2      wrong usage: an unknown command, option or argument, one that is missing,
         an invalid value, or a configuration that cannot be used. Nothing was
         done
  3      refused, before anything was touched: a check has found that it cannot be
         done, or there is no such process, image or session. The error says why,
         and cucriu check finds most causes beforehand
  4      failed, and the job is not recovered yet: cucriu status says why, and cucriu
         recover tries again (after cucriu lock: cucriu unlock)
  5      failed, and the job, or a part of it, ended meanwhile; the error says
         which processes
  128+n  cancelled by signal n: everything was undone. A signal that arrives too late
         to undo anything is ignored, and the command says so

cucriu check ends with 3 if there is a blocking finding, and with 1 if the check
itself failed. cucriu restore --foreground ends with the job's own status, and
with 128+n if signal n has ended the job. So does cucriu run; it ends with 127 or
126 if the command was not found or cannot be executed, with 125 if cucriu itself
has failed, and with --requeue-status after a preemption or cucriu jobs stop.`,
	}
}

// usageError is wrong usage of the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// runError is a failure of cucriu run, whose exit status must not be taken for the job's.
type runError struct{ error }

func (e runError) Unwrap() error { return e.error }

// exitCode returns the exit status for an error. What became of the job counts before the
// cause.
func exitCode(ctx context.Context, err error) int {
	var foreground exitStatus
	var signalled *signalError
	var notStarted *job.NotStartedError
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(usageError)):
		return exitUsage
	case errors.As(err, &notStarted):
		return notStarted.Status
	case errors.As(err, new(runError)):
		return job.StatusFailed
	case errors.Is(err, hooks.ErrNotBack):
		return exitNotBack
	case errors.Is(err, hooks.ErrEnded):
		return exitEnded
	case errors.As(err, &foreground):
		return int(foreground)
	case errors.As(context.Cause(ctx), &signalled):
		return exitSignal + int(signalled.signal)
	case preflight.Refused(err):
		return exitRefused
	}
	return exitFailed
}

// signalError says that everything was given up because of a signal.
type signalError struct{ signal unix.Signal }

func (e *signalError) Error() string { return "got " + unix.SignalName(e.signal) }

// untilSignal returns a context that ends with the first signal that asks this program to end.
// Further signals change nothing: what was begun is still undone.
func untilSignal() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	go func() { cancel(&signalError{(<-signals).(unix.Signal)}) }()
	// The reader of our output may end before a job is back.
	signal.Ignore(unix.SIGPIPE)
	return ctx
}

func deferStops(cmd *cobra.Command) (over func()) {
	return job.DeferStops(func() { say(fmt.Sprintf("got SIGTSTP: this command will stop once the %s is over", cmd.Name())) })
}

// say tells people something beside the output of a command.
func say(text string) { fmt.Fprintln(logging.Stderr(), "cucriu: "+quote.Lines(text)) }

// atSignal does something, and says what a signal will do, when it comes, and at the end whether
// it came too late.
func atSignal(cmd *cobra.Command, say func(string), text string, do func() error) error {
	ctx, said := cmd.Context(), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(said)
		say(fmt.Sprintf("%v: %s", context.Cause(ctx), text))
	})
	err := do()
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) && preflight.Refused(err) {
		err = fmt.Errorf("%w; nothing was touched", err) // the exit status is the signal's
	}
	if !stop() {
		if <-said; err == nil {
			say(fmt.Sprintf("%v too late: the %s is complete", context.Cause(ctx), cmd.Name()))
		}
	}
	return err
}

// exitStatus is the exit status of a job that ran in the foreground.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("the job ended with status %d", int(s)) }
