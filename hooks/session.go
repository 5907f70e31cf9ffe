package hooks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"cucriu/cudackpt"
	"cucriu/internal/failpoint"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// session is a session of the journal that this program is at work on.
type session struct {
	*journal.Session
	env *Hook
}

// These name who spends the time of a phase, beside the stages of criu.
const (
	byCommand = ""
	byWatcher = "watcher"
	byRecover = "recover"
)

// newSession begins a session, which began at a time since boot.
func (h *Hook) newSession(record journal.Record, by string, begun time.Duration) (*session, error) {
	s, err := journal.Create(h.Config.RunDir, record, begun)
	if err != nil {
		return nil, err
	}
	return h.takeOn(s, by), nil
}

// takeOn has this program work on a session of the journal. by is who spends the time of its phases.
func (h *Hook) takeOn(s *journal.Session, by string) *session {
	s.By = by
	return &session{Session: s, env: h}
}

// latestSessionOf finds and locks the latest session of a running criu, open or over. It
// returns nil if there is none. If somebody is at work on the session, it waits, or without
// wait fails with [journal.ErrBusy].
func latestSessionOf(h *Hook, kind journal.Kind, criu proc.Ident, by string, wait bool) (*session, error) {
	if journal.IsForeign(h.Config.RunDir) {
		return nil, nil
	}
	if _, err := journal.MakeSessionsDir(h.Config.RunDir); err != nil {
		return nil, err
	}
	dir := journal.Path(h.Config.RunDir, kind, criu)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	s, err := journal.Load(dir, wait)
	if err != nil {
		return nil, err
	}
	if s.Criu != criu { // another criu with the same pid, in another pid namespace
		s.LetGo()
		return nil, nil
	}
	return h.takeOn(s, by), nil
}

// note writes the journal if it can be written: a full disk must not keep a job
// from coming back.
func (s *session) note() {
	if err := s.Save(); err != nil {
		s.env.Log.Warn("the run directory cannot be written; the job is brought back all the same", "error", err)
	}
}

// stuckPrefix begins the message of a session whose job is not back yet.
const stuckPrefix = "not back yet: "

// noteStuck notes why a job is not back yet, for everybody who waits for it or asks.
func (s *session) noteStuck(err error) {
	if s.Outcome == "" {
		s.Stuck, s.Message = true, stuckPrefix+err.Error()
		s.note()
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
		continueAncestors(s.Ancestors)
	}
	if err := s.Save(); err != nil {
		return err
	}
	_ = s.WriteTimeline() // the journal has it all
	return killWatcher(&s.Record)
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
	if s.env.Progress != nil {
		s.env.Progress(&s.Record, name)
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
	if s.Watcher != nil {
		watcher = s.Watcher.PID
	}
	return failpoint.Hit(ctx, step, watcher)
}

// parkedFile names the file that keeps what the parked threads of a process need.
func (s *session) parkedFile(pid int) string { return s.fileOf("parked-", pid) }

// borrowedFile names the file that keeps what belongs to the borrowed threads of a process,
// for a run that comes after us.
func (s *session) borrowedFile(pid int) string { return s.fileOf("threads-", pid) }

func (s *session) fileOf(kind string, pid int) string {
	return filepath.Join(s.Dir(), kind+strconv.Itoa(pid)+".json")
}
