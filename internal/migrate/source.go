package migrate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
	"cucriu/hooks/timeline"
	"cucriu/internal/jobs"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/quote"
	"cucriu/internal/migrate/commit"
	"cucriu/internal/migrate/wire"
)

// leaving is a job on its way from this host: a process tree or a long job.
type leaving interface {
	// prepare finds out whether the job can move. Nothing is touched.
	prepare(ctx context.Context) error
	// begin writes down that the job is about to leave. Nothing else is touched.
	begin() error
	// move brings a complete copy to the destination, which has promised it when move returns.
	move(ctx context.Context) error

	// state is what is written down of the decision.
	state() (commit.SourceState, error)
	// decide writes a decision down, unless it is, and then resumes the copy here or ends it. Again,
	// it does what an earlier call has not finished.
	decide(ctx context.Context, s commit.SourceState) error
	// returned takes back a job that the destination cannot resume.
	returned(ctx context.Context, why string) error
	// told closes the records: the destination knows the decision.
	told(ctx context.Context, s commit.SourceState) error
	// forgotten is the error if the destination does not know a job that has left.
	forgotten() error
	// undelivered says what is where if the destination could not be told a decision.
	undelivered(s commit.SourceState, cause error) string
}

// sourceSession is the source's side of one migration: the connection with the destination, the
// driver of the commit protocol, and what is reported.
type sourceSession struct {
	job      leaving
	dir      string // of a long job
	hook     *hooks.Hook
	options  Options
	identity *wire.Identity
	remote   *remote // nil before there is one, and after it was lost
	begun    time.Time
	halted   time.Time // when the job came to a halt
	limit    pauseLimit
	// recovering says that another program has begun.
	recovering bool
	notBack    error           // why the job does not run here, although it is to
	failure    error           // what the destination has last said of a decision that it could not carry out
	there      timeline.Phases // what the destination did, on its clock
	result     Result
}

// newID returns a name that nothing else has.
func newID() string {
	random := make([]byte, 8)
	rand.Read(random)
	return hex.EncodeToString(random)
}

// run moves the job.
func (s *sourceSession) run(ctx context.Context) error {
	err := s.options.fill()
	if err == nil {
		s.result.ID, s.result.Host = newID(), s.options.Host
		err = s.job.prepare(ctx)
	}
	if err != nil || s.options.DryRun {
		return preflight.AsRefusal(err)
	}
	defer func() { s.result.Total = time.Since(s.begun) }()
	if err := s.job.begin(); err != nil {
		return preflight.AsRefusal(err)
	}
	moving, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	s.limit = pauseLimit{most: s.options.MaxPause, giveUp: giveUp}
	err = s.job.move(moving)
	s.limit.end()
	if err != nil {
		return s.giveUp(err)
	}
	if err := s.handleEvent(commit.Ready); err != nil {
		if state, stateErr := s.job.state(); stateErr == nil && state == commit.Undecided {
			return s.giveUp(err) // the decision could not be written down
		}
		return err
	}
	s.result.Pause = time.Since(s.halted)
	return nil
}

// giveUp lets the job run here, and says why it did not move.
func (s *sourceSession) giveUp(cause error) error {
	refused := preflight.Refused(cause) && s.halted.IsZero() && s.result.Before == 0
	err := s.handleEvent(commit.Failed)
	switch {
	case err == nil && refused:
		return preflight.AsRefusal(cause)
	case err == nil:
		return preflight.AsFailure(fmt.Errorf("%w; the job keeps running here", cause))
	}
	return errors.Join(preflight.AsFailure(cause), err)
}

// handleEvent answers an event, and the destination's answers to that, until both sides know what
// was decided. It is not given up half way.
func (s *sourceSession) handleEvent(e commit.Event) error {
	for e != "" {
		state, err := s.job.state()
		if err != nil {
			return fmt.Errorf("%w: %w", hooks.ErrNotBack, err)
		}
		next, do, err := state.HandleEvent(e)
		if err != nil {
			return err
		}
		answer, err := s.execute(context.Background(), next, do)
		switch {
		case errors.Is(err, checkpoint.ErrDecided):
			continue // by the watcher or a recover: the state is another now
		case err != nil:
			return err
		case e == commit.Unknown && next == commit.End:
			return s.job.forgotten()
		}
		e = answer
	}
	return nil
}

// execute does actions, and returns the destination's answer if it was told something.
func (s *sourceSession) execute(ctx context.Context, state commit.SourceState, do []commit.Action) (answer commit.Event, err error) {
	for _, action := range do {
		switch action {
		case commit.BringBack, commit.KillCopy:
			err = s.job.decide(ctx, state)
		case commit.SayCommit, commit.SayAbort:
			answer, err = s.say(ctx, state)
		case commit.Close:
			err = s.job.told(ctx, state)
		}
		if err == nil {
			err = reach(ctx, "migrate."+string(action))
		}
		if err != nil {
			return "", err
		}
	}
	return answer, nil
}

// say tells the destination what was decided, and returns what it answers: nothing if it has given
// the job back.
func (s *sourceSession) say(ctx context.Context, state commit.SourceState) (commit.Event, error) {
	decision := map[commit.SourceState]string{commit.Back: sayAbort, commit.End: sayCommit}[state]
	var answer wire.Message
	err := s.phase("tell "+s.options.Host, func() (err error) {
		answer, err = s.deliver(ctx, decision)
		return err
	})
	if err != nil {
		if s.failure != nil && !errors.Is(err, s.failure) {
			err = errors.Join(err, s.failure)
		}
		return "", errors.Join(s.notBack, &undeliveredError{s.job.undelivered(state, err), state, err})
	}
	if answer.Kind != sayReturned {
		return commit.Event(answer.Kind), nil
	}
	var r jobReturned
	if err := answer.Decode(&r); err != nil {
		return "", &undeliveredError{s.job.undelivered(state, err), state, err}
	}
	return "", s.job.returned(ctx, quote.Foreign(r.Why))
}

// undeliveredError says what is where, and what decides.
type undeliveredError struct {
	text  string
	state commit.SourceState
	cause error
}

func (e *undeliveredError) Error() string { return e.text }

func (e *undeliveredError) Unwrap() error { return e.cause }

// Is says that it is [hooks.ErrNotBack] if the job runs nowhere.
func (e *undeliveredError) Is(target error) bool {
	return target == hooks.ErrNotBack && e.state == commit.End
}

const (
	// settlePatience is how long a destination is tried that cannot be reached.
	settlePatience = time.Minute
	// answerPatience is how long it may take to do what it was told: to let a tree run, or resume a
	// long job.
	answerPatience, resumePatience = 10 * time.Minute, jobs.StartPatience + time.Minute
)

// deliver tells the destination a decision, over the connection that there is or, if that is lost,
// over new ones. It returns the answer.
func (s *sourceSession) deliver(ctx context.Context, decision string) (answer wire.Message, err error) {
	if s.remote != nil {
		if answer, err = s.ask(ctx, decision, decision, nil); err == nil || !isLost(err) {
			return answer, err
		}
		s.hook.Log.Warn("the connection to the destination is lost: trying another", "error", err)
	}
	for deadline, pause := time.Now().Add(failpoint.Patience(settlePatience)), failpoint.Patience(time.Second); ; pause = min(2*pause, 10*time.Second) {
		s.hangUp()
		connecting, cancel := context.WithDeadline(ctx, deadline) // ssh by itself tries for minutes
		err = s.connect(connecting)
		cancel()
		if err == nil {
			answer, err = s.ask(ctx, decision, saySettle, settleMessage{decision, s.dir})
		}
		if err == nil || errors.As(err, new(*thereError)) || !time.Now().Add(pause).Before(deadline) {
			return answer, err
		}
		time.Sleep(pause)
	}
}

// ask sends a decision in a message of some kind, and waits for the answer. A destination that could
// not let the job run tries again, and ends the connection if that fails, too.
func (s *sourceSession) ask(ctx context.Context, decision, kind string, body any) (wire.Message, error) {
	if err := s.remote.Send(kind, body); err != nil {
		return wire.Message{}, err
	}
	if err := reach(ctx, "migrate.told"); err != nil {
		return wire.Message{}, err
	}
	patience := answerPatience
	if s.dir != "" {
		patience = resumePatience
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, wire.ErrSilent)
	defer cancel()
	for {
		m, err := s.remote.Receive(ctx)
		if err != nil {
			return m, err
		}
		switch m.Kind {
		case sayRunning:
			var r running
			if err := m.Decode(&r); err != nil {
				return m, err
			}
			s.result.PID, s.there = r.PID, r.Steps
			return m, nil
		case sayEnded, sayUnknown, sayReturned:
			return m, nil
		case sayFailed:
			s.failure = failureOf(m)
			there := new(thereError)
			if errors.As(s.failure, &there) && there.asked == kind && decision == sayAbort {
				return m, s.failure
			}
			// It will be heard of again, or it has failed before it heard the decision.
			s.hook.Log.Info("the destination reports a failure", "error", s.failure)
		}
	}
}

func isLost(err error) bool {
	return errors.Is(err, wire.ErrClosed) || errors.Is(err, wire.ErrSilent)
}

// connect starts cucriu at the destination.
func (s *sourceSession) connect(ctx context.Context) (err error) {
	if s.identity == nil {
		if s.identity, err = wire.NewIdentity(); err != nil {
			return err
		}
	}
	s.remote, err = connect(ctx, &s.options, s.result.ID, s.identity.Fingerprint())
	return err
}

// hangUp ends the connection, if there is one.
func (s *sourceSession) hangUp() {
	if s.remote != nil {
		s.remote.Close()
		s.remote = nil
	}
}

func (s *sourceSession) close() {
	if r := s.remote; r != nil {
		s.hangUp()
		<-r.ended
	}
}

// phase does a part of the migration and notes how long it took.
func (s *sourceSession) phase(name string, do func() error) error {
	s.tell(Progress{Phase: name})
	begin := time.Now()
	err := do()
	s.result.Phases = append(s.result.Phases, Phase{Name: name, Begin: begin.Sub(s.begun), Took: time.Since(begin), Running: s.halted.IsZero()})
	return err
}

func (s *sourceSession) tell(p Progress) {
	if s.options.Progress != nil {
		s.options.Progress(p)
	}
}
