package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"cucriu/cudackpt"
	"cucriu/hooks/config"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/rundir"
)

// Session is a session of the journal that this program is at work on.
type Session struct {
	*journal.Session
	Env    *Env
	keeper *os.File // nil: the watcher keeps nothing
	kept   sync.Map // what this program has taken from the watcher: *os.File by pid
}

// These name who spends the time of a phase, beside the stages of criu.
const (
	ByCommand = ""
	ByWatcher = "watcher"
	ByRecover = "recover"
)

// NewSession begins a session, which began at a time since boot.
func (env *Env) NewSession(record journal.Record, by string, begun time.Duration) (*Session, error) {
	s, err := journal.Create(env.Config.RunDir, record, begun)
	if err != nil {
		return nil, err
	}
	return env.TakeOn(s, by), nil
}

// TakeOn has this program work on a session of the journal. by is who spends the time of its phases.
func (env *Env) TakeOn(s *journal.Session, by string) *Session {
	s.By = by
	return &Session{Session: s, Env: env}
}

// LatestSessionOf finds and locks the latest session of a running criu, open or over; nil if there is
// none. If somebody is at work on it, it waits, or without wait fails with [journal.ErrBusy].
func LatestSessionOf(env *Env, kind journal.Kind, criu proc.Ident, by string, wait bool) (*Session, error) {
	if rundir.IsForeign(env.Config.RunDir) {
		return nil, nil
	}
	if _, err := rundir.MakeSessions(env.Config.RunDir); err != nil {
		return nil, err
	}
	dir := journal.Path(env.Config.RunDir, kind, criu)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	s, err := journal.Load(dir, wait)
	if err != nil {
		return nil, err
	}
	if s.Criu != criu { // another criu with the same pid, in another pid namespace
		s.Unlock()
		return nil, nil
	}
	return env.TakeOn(s, by), nil
}

// Note writes the journal if it can be written: a full disk must not keep a job from coming back.
func (s *Session) Note() {
	if err := s.Save(); err != nil {
		s.Env.Log.Warn("the run directory cannot be written; the job is restored anyway", "error", err)
	}
}

// StuckPrefix begins the message of a session whose job is not back yet.
const StuckPrefix = "not recovered yet: "

// NoteStuck notes why a job is not back yet, for everybody who waits for it or asks.
func (s *Session) NoteStuck(err error) {
	if s.Outcome == "" {
		s.Stuck, s.Message = true, StuckPrefix+err.Error()
		s.Note()
	}
}

// Close records what became of the processes. Nothing more is to be done, so it kills the watcher: criu
// may live on for as long as the job that it has restored.
func (s *Session) Close(outcome journal.Outcome, message string) error {
	s.Outcome, s.Message, s.Stuck = outcome, message, false
	if err := s.Failpoint(context.Background(), string(s.Kind)+".close"); err != nil {
		return err
	}
	if s.Ended.IsZero() { // else it is written once more
		s.Ended = time.Now().UTC()
	}
	if outcome != journal.OutcomeStopped { // ancestors of a stopped job are rightly stopped
		continueAncestors(s.Ancestors)
	}
	if err := s.Save(); err != nil {
		return err
	}
	_ = s.WriteTimeline() // the journal has it all
	return KillWatcher(&s.Record)
}

// Step is a step of a protocol.
type Step struct {
	Name journal.Step
	Do   func(context.Context) error
}

// DoSteps does steps one after another, each written ahead.
func (s *Session) DoSteps(ctx context.Context, steps []Step) error {
	for _, step := range steps {
		if err := s.DoStep(step.Name, func() error { return step.Do(ctx) }); err != nil {
			return fmt.Errorf("%s: %w", step.Name, GivenUp(ctx, err))
		}
	}
	return nil
}

// DoStep writes in the journal that a step begins, does it, and notes how long it took.
func (s *Session) DoStep(step journal.Step, do func() error) error {
	if err := s.Begin(step); err != nil {
		return err
	}
	if err := s.Failpoint(context.Background(), string(s.Kind)+"."+string(step)); err != nil {
		return err
	}
	return s.Timed(string(step), do)
}

// GivenUp says why a step was given up: not what the error says then of what it has waited for, nor
// what a driver call advises those who make it.
func GivenUp(ctx context.Context, err error) error {
	call := new(cudackpt.InterruptedError)
	isCall := errors.As(err, &call)
	switch {
	case errors.Is(ctx.Err(), context.Canceled) && (isCall || errors.Is(err, context.Canceled)):
		return fmt.Errorf("%w: cancelled", context.Cause(ctx))
	case isCall && call.InTheWay != "":
		return fmt.Errorf("%s of process %d is still under way: %w", call.InTheWay, call.PID, call.Err)
	case isCall:
		return fmt.Errorf("%s of process %d did not end in time: %w", call.Call, call.PID, call.Err)
	}
	return err
}

// Timed does a step of the session, and notes how long it took.
func (s *Session) Timed(name string, do func() error) error {
	if s.Env.Progress != nil {
		s.Env.Progress(config.Step{Name: name, Measure: func() func() (int64, int64) { return measureOf(&s.Record, name) }})
	}
	return s.Span(0, name, do)
}

// SpanOf does something for one process of the session, and notes how long it took. Without a session
// it notes nothing.
func (s *Session) SpanOf(pid int, name string, do func() error) error {
	if s == nil {
		return do()
	}
	return s.Span(pid, name, do)
}

// Failpoint makes a step go wrong for the tests. It does nothing in a real build.
func (s *Session) Failpoint(ctx context.Context, step string) error {
	watcher := 0
	if s.Watcher != nil {
		watcher = s.Watcher.PID
	}
	return failpoint.Hit(ctx, step, watcher)
}

// ParkedFile names the file that keeps what the parked threads of a process need.
func (s *Session) ParkedFile(pid int) string { return s.fileOf("parked-", pid) }

// BorrowedFile names the file that keeps what belongs to the borrowed threads of a process, for a run
// that comes after us.
func (s *Session) BorrowedFile(pid int) string { return s.fileOf("threads-", pid) }

func (s *Session) fileOf(kind string, pid int) string {
	return filepath.Join(s.Dir(), kind+strconv.Itoa(pid)+".json")
}
