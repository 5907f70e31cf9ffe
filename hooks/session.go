package hooks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cucriu/cudackpt"
	"cucriu/internal/failpoint"
	"cucriu/internal/journal"
)

// session is a session of the journal that this program is at work on. Its methods act on
// the processes that the journal names.
type session struct {
	*journal.Session
	progress func(r *journal.Record, step string)
}

// These name who spends the time of a phase, beside the stages of criu.
const (
	byWatcher = "watcher"
	byRecover = "recover"
)

// newSession begins a session.
func (h *Hook) newSession(record journal.Record) (*session, error) {
	s, err := journal.Create(h.Config.RunDir, record, h.begun)
	if err != nil {
		return nil, err
	}
	return h.takeOn(s), nil
}

// takeOn makes this hook work on a session of the journal.
func (h *Hook) takeOn(s *journal.Session) *session {
	s.By = h.by
	return &session{Session: s, progress: h.Progress}
}

// note writes the journal if it can be written: a full disk must not keep a job
// from coming back.
func (h *Hook) note(s *session) {
	if err := s.Save(); err != nil {
		h.Log.Warn("the run directory cannot be written; the job is brought back all the same", "error", err)
	}
}

// close records what became of the processes. Nothing more is to be done, so it kills the
// watcher: criu may live on for as long as the job that it has restored.
func (s *session) close(outcome journal.Outcome, message string) error {
	s.Outcome, s.Message, s.Stuck = outcome, message, false
	if err := s.failpoint(context.Background(), string(s.Kind)+".close"); err != nil {
		return err
	}
	if s.Ended.IsZero() { // else it is written once more
		s.Ended = time.Now().UTC()
	}
	if outcome != journal.OutcomeStopped { // ancestors of a stopped job are right to stand still
		s.continueAncestors()
	}
	if err := s.Save(); err != nil {
		return err
	}
	_ = s.WriteTimeline() // the journal has it all
	return s.killWatcher()
}

// doStep writes in the journal that a step begins, does it, and notes how long it took.
func (s *session) doStep(step journal.Step, do func() error) error {
	if err := s.Begin(step); err != nil {
		return err
	}
	if err := s.failpoint(context.Background(), string(s.Kind)+"."+string(step)); err != nil {
		return err
	}
	return s.timed(string(step), do)
}

// step is a step of a protocol.
type step struct {
	name journal.Step
	do   func(context.Context) error
}

// doSteps does steps one after another, each written ahead.
func (s *session) doSteps(ctx context.Context, steps []step) error {
	for _, step := range steps {
		if err := s.doStep(step.name, func() error { return step.do(ctx) }); err != nil {
			return fmt.Errorf("%s: %w", step.name, givenUp(ctx, err))
		}
	}
	return nil
}

// givenUp says why a step was given up. What an error says then of what it has waited for is
// not so. What a driver call advises is for those who make it; here the way back waits until the
// call is over.
func givenUp(ctx context.Context, err error) error {
	call := new(cudackpt.InterruptedError)
	isCall := errors.As(err, &call)
	switch {
	case isCall && ctx.Err() != nil:
		return fmt.Errorf("%w: %s of process %d was given up", context.Cause(ctx), call.Call, call.PID)
	case isCall:
		return fmt.Errorf("%s of process %d did not end in time: %w", call.Call, call.PID, call.Err)
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return fmt.Errorf("%w: given up", context.Cause(ctx))
	}
	return err
}

// timed does a step of the session, and notes how long it took.
func (s *session) timed(name string, do func() error) error {
	if s.progress != nil {
		s.progress(&s.Record, name)
	}
	return s.Span(0, name, do)
}

// spanOf does something for one process of the session, and notes how long it took. Without
// a session it notes nothing.
func (s *session) spanOf(pid int, name string, do func() error) error {
	if s == nil {
		return do()
	}
	return s.Span(pid, name, do)
}

// failpoint makes a step go wrong for the tests. It does nothing in a real build.
func (s *session) failpoint(ctx context.Context, step string) error {
	watcher := 0
	if s != nil && s.Session != nil && s.Watcher != nil {
		watcher = s.Watcher.PID
	}
	return failpoint.Hit(ctx, step, watcher)
}
