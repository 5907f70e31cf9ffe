package watch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"cucriu/internal/journal"
	"cucriu/internal/proc"
	"cucriu/internal/session"
)

// Finish brings the session of a criu that has ended to a good end, as its watcher would, and returns
// it; nil if there is none. cause is why criu failed, for the journal; empty if it did not, or it is
// not known.
func Finish(ctx context.Context, env *session.Env, kind journal.Kind, criu proc.Ident, cause string) (*journal.Session, error) {
	env = env.Filled()
	ctx = context.WithoutCancel(ctx)
	deadline := time.Now().Add(env.Config.Lock.Timeout) // gives a watcher that fails at first time for another try
	s, err := session.LatestSessionOf(env, kind, criu, session.ByCommand, false)
	for ; errors.Is(err, journal.ErrBusy); s, err = session.LatestSessionOf(env, kind, criu, session.ByCommand, false) {
		// Its watcher is at work, and gives the lock back once it has succeeded.
		if now := failedTry(env.Config.RunDir, kind, criu); now != nil && time.Now().After(deadline) {
			return now, fmt.Errorf("%w, its watcher goes on trying (cucriu status shows it): %s", session.ErrNotBack, strings.TrimPrefix(now.Message, session.StuckPrefix))
		}
		time.Sleep(5 * time.Millisecond) // there is no event for a try that has failed
	}
	if err != nil {
		return nil, fmt.Errorf("%w, as far as can be told: %w", session.ErrNotBack, err)
	}
	if s == nil {
		return nil, nil
	}
	defer s.LetGo()
	if err := conclude(ctx, s); err != nil {
		s.NoteStuck(err)
		return s.Session, fmt.Errorf("%w, its watcher goes on trying (cucriu status shows it): %w", session.ErrNotBack, err)
	}
	if cause != "" && s.Outcome != journal.OutcomeDumped {
		s.Message += "; the cause: " + cause
		if err := s.Save(); err != nil { // the job is at its good end all the same
			env.Log.Warn("the journal does not say why criu failed", "session", s.Name(), "error", err)
		}
	}
	return s.Session, nil
}

// failedTry returns the session as it stands in the journal, if its watcher has tried to finish it and
// failed.
func failedTry(runDir string, kind journal.Kind, criu proc.Ident) *journal.Session {
	s, err := journal.Read(journal.Path(runDir, kind, criu))
	if err != nil || s.Outcome != "" || !s.Stuck {
		return nil
	}
	return s
}

// AwaitStandstill waits until every thread of a tree that was left stopped has stopped: criu does not
// wait for its SIGSTOP to take effect.
func AwaitStandstill(ctx context.Context, env *session.Env, root int) error {
	env = env.Filled()
	pids, err := proc.Tree(root)
	if errors.Is(err, proc.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, env.Patience(pids...))
	defer cancel()
	for _, pid := range pids {
		process, err := proc.Open(pid)
		if err == nil {
			err = errors.Join(proc.WaitStopped(ctx, process), process.Close())
		}
		if err != nil && !errors.Is(err, proc.ErrGone) {
			return err
		}
	}
	return nil
}
