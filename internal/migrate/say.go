package migrate

import (
	"context"
	"errors"
	"time"

	"cucriu/hooks"
	"cucriu/internal/failpoint"
	"cucriu/internal/migrate/wire"
)

// ErrUndelivered is wrapped by an error that says that the decision is made, and the destination
// could not be told.
var ErrUndelivered = errors.New("the destination does not know of it")

// settlePatience is how long a destination is tried that cannot be reached.
const settlePatience = time.Minute

// manner is how the destinations of one kind hear of a decision.
type manner struct {
	args   []string                                   // of cucriu receive
	settle func(decision string) (kind string, m any) // the message over a connection of its own
	// patience is how long the destination may take to do what it was told.
	patience time.Duration
	// triesAgain says that the destination tries again to let the job run if that has failed, or
	// ends the connection.
	triesAgain bool
}

// say tells the destination what was decided, over the connection that there is or, if that is
// lost, over new ones. It returns the answer.
func (d *departure) say(ctx context.Context, decision string) (answer wire.Message, err error) {
	err = d.phase("tell "+d.options.Host, func() error {
		if d.remote != nil {
			if answer, err = d.sayOnce(ctx, decision, decision, nil); err == nil || !isLost(err) {
				return err
			}
			d.hook.Log.Warn("the connection to the destination is lost: trying another", "error", err)
		}
		kind, body := d.manner.settle(decision)
		for deadline, pause := time.Now().Add(failpoint.Patience(settlePatience)), failpoint.Patience(time.Second); ; pause = min(2*pause, 10*time.Second) {
			d.hangUp()
			if err = d.connectBefore(ctx, deadline); err == nil {
				answer, err = d.sayOnce(ctx, decision, kind, body)
			}
			if err == nil || errors.As(err, new(*thereError)) || !time.Now().Add(pause).Before(deadline) {
				return err
			}
			time.Sleep(pause)
		}
	})
	return answer, err
}

// connectBefore makes a connection. ssh by itself tries for minutes.
func (d *departure) connectBefore(ctx context.Context, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return d.connect(ctx)
}

// sayOnce sends a decision in a message of some kind, and waits for the answer.
func (d *departure) sayOnce(ctx context.Context, decision, kind string, body any) (wire.Message, error) {
	if err := d.remote.Send(kind, body); err != nil {
		return wire.Message{}, err
	}
	if err := reach(ctx, "migrate.told"); err != nil {
		return wire.Message{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.manner.patience, wire.ErrSilent)
	defer cancel()
	for {
		m, err := d.remote.Receive(ctx)
		if err != nil {
			return m, err
		}
		switch m.Kind {
		case sayRunning:
			var r running
			if err := m.Decode(&r); err != nil {
				return m, err
			}
			d.result.PID = r.PID
			if err := checkPhases(r.Steps); err == nil { // the job runs, whatever it says
				d.there = r.Steps
			}
			return m, nil
		case sayEnded, sayUnknown, sayReturned:
			return m, nil
		case sayFailed:
			d.failure = failureOf(m)
			there := new(thereError)
			if errors.As(d.failure, &there) && there.asked == kind && !(d.manner.triesAgain && decision == sayCommit) {
				return m, d.failure
			}
			// It will be heard of again, or it has failed before it heard the decision.
			d.hook.Log.Info("the destination reports a failure", "error", d.failure)
		}
	}
}

func isLost(err error) bool {
	return errors.Is(err, wire.ErrClosed) || errors.Is(err, wire.ErrSilent)
}

// undeliveredError says what is where, and what decides.
type undeliveredError struct {
	text     string
	decision string
	cause    error
}

func (e *undeliveredError) Error() string { return e.text }

func (e *undeliveredError) Unwrap() error { return e.cause }

// Is makes the error known as [ErrUndelivered] and, if the job runs nowhere, as [hooks.ErrNotBack].
func (e *undeliveredError) Is(target error) bool {
	return target == ErrUndelivered || target == hooks.ErrNotBack && e.decision == sayCommit
}
