package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/rundir"
)

// Recover brings every orphaned session to a good end: one whose criu has ended, and on which neither
// hook nor watcher is at work. It waits for those that were killed. It returns the sessions that it
// worked on, and those on which somebody else is at work. The errors of those that are not finished
// wrap [session.ErrNotBack].
func Recover(ctx context.Context, env *session.Env) ([]*journal.Session, error) {
	dirs, err := sessionDirs(env)
	if err != nil {
		return nil, err
	}
	return recoverAll(ctx, env, dirs, true)
}

func sessionDirs(env *session.Env) ([]string, error) {
	sessions, err := rundir.MakeSessions(env.Config.RunDir)
	if err != nil {
		return nil, err
	}
	return journal.Dirs(sessions)
}

// recoverAll works on the orphans among sessions. If strict is set, a session on which somebody is at
// work is an error.
func recoverAll(ctx context.Context, env *session.Env, dirs []string, strict bool) ([]*journal.Session, error) {
	var recovered []*journal.Session
	quiet := *env
	quiet.Progress = nil // it is not the job that somebody looks at
	var errs []error
	waiting, cancel := context.WithTimeout(ctx, env.Config.Lock.Timeout) // for the locks of all
	defer cancel()
	for _, dir := range dirs {
		s, err := recoverOne(ctx, &quiet, waiting, dir, strict)
		if errors.As(err, new(*AtWorkError)) && !strict {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: session %s: %w", session.ErrNotBack, filepath.Base(dir), err))
		}
		if s != nil {
			recovered = append(recovered, s.Session)
		}
	}
	return recovered, errors.Join(errs...)
}

// AtWorkError says who is at work on a session, which [Recover] then leaves alone. It is [ErrUnwatched] if that is criu
// alone: should it fail, nobody brings the processes back.
type AtWorkError struct {
	text      string
	unwatched bool
}

// ErrUnwatched is what an [AtWorkError] is that names a criu whose watcher has ended.
var ErrUnwatched = errors.New("no watcher is there")

func (e *AtWorkError) Error() string { return e.text }

// Is reports whether the target is [ErrUnwatched], and the error is, too.
func (e *AtWorkError) Is(target error) bool { return e.unwatched && target == ErrUnwatched }

// atWork returns an error that says that somebody is at work on the session.
func atWork(s *journal.Record, who string) *AtWorkError {
	if s.Stuck {
		return &AtWorkError{text: "its watcher keeps trying: " + strings.TrimPrefix(s.Message, session.StuckPrefix)}
	}
	working := s.Owners()
	if s.Client != nil {
		working = append(working, *s.Client)
	}
	for _, id := range working { // one that is stopped never comes to its end
		if stopped, err := proc.Stopped(id.PID); err == nil && stopped && id.Alive() {
			status, _ := proc.ReadStatus(id.PID)
			return &AtWorkError{text: fmt.Sprintf("process %d (%s), which is working on it (step %s), is stopped: kill -CONT %[1]d", id.PID, status.Name, s.Step)}
		}
	}
	return &AtWorkError{text: fmt.Sprintf("%s is working on it (step %s): wait for it, then run cucriu recover again", who, s.Step)}
}

// RecoverFirst restores orphaned jobs before another session begins: the job of that session may be
// among them. What cannot be restored at once is left to cucriu recover.
func RecoverFirst(ctx context.Context, env *session.Env) {
	if rundir.IsForeign(env.Config.RunDir) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, env.Config.Lock.Timeout)
	defer cancel()
	dirs, err := sessionDirs(env)
	if err != nil {
		return // what needs the directory says what is wrong with it
	}
	recovered, err := recoverAll(ctx, env, dirs, false)
	for _, s := range recovered {
		if s.Outcome == "" {
			continue // the error tells of it
		}
		env.Log.Info("recovered an orphaned job first", "session", s.Name(), "outcome", s.Outcome)
	}
	if err != nil {
		env.Log.Warn("an earlier job is not recovered yet: cucriu status shows it", "error", err)
	}
}

// recoverOne brings a session to its end if it is orphaned. If strict is set, it waits for the lock of
// a session until waiting ends: who was killed may still have it.
func recoverOne(ctx context.Context, env *session.Env, waiting context.Context, dir string, strict bool) (*session.Session, error) {
	read, err := journal.Load(dir, false)
	if errors.Is(err, journal.ErrBusy) {
		now, readErr := journal.Read(dir)
		if readErr != nil || now.Outcome != "" || now.Elsewhere() {
			return nil, nil
		}
		if strict && !now.Stuck {
			read, err = journal.LoadWithin(waiting, dir)
		}
		if errors.Is(err, journal.ErrBusy) {
			s := env.TakeOn(now, session.ByRecover)
			return s, atWork(&s.Record, "its hook, watcher or command")
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // killed before the journal was written and anything touched
	}
	if err != nil {
		return nil, err
	}
	s := env.TakeOn(read, session.ByRecover)
	defer s.Unlock()
	if s.Held() && s.Hold.IfAbandoned == journal.StayHeld { // somebody must decide
		return nil, nil
	}
	if s.Outcome != "" || s.Suspended() && slices.ContainsFunc(s.Members, journal.Member.Alive) {
		return nil, nil
	}
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	if s.BootID == boot { // after a reboot its identities mean nothing
		if owned, err := owned(ctx, s); err != nil {
			return s, err
		} else if owned {
			return nil, nil
		}
	}
	if err := conclude(ctx, s); err != nil {
		s.NoteStuck(err)
		return s, err
	}
	return s, nil
}

// owned returns an [AtWorkError] if somebody is left who will take the session on: a criu that lives
// calls its hook again, and a watcher waits for its turn. It waits for who was killed and is not gone
// yet. If an owner is in another pid namespace, nobody here can tell whether it lives, and owned
// reports that.
func owned(ctx context.Context, s *session.Session) (elsewhere bool, err error) {
	for _, id := range s.Owners() {
		owner, err := proc.Reopen(id)
		switch {
		case errors.Is(err, proc.ErrGone):
			continue
		case errors.Is(err, proc.ErrElsewhere):
			return true, nil
		case err != nil:
			return false, err
		}
		defer owner.Close()
		status, _ := proc.ReadStatus(id.PID)
		who := fmt.Sprintf("process %d (%s)", id.PID, status.Name)
		if !owner.Exiting() {
			err := atWork(&s.Record, who)
			err.unwatched = id == s.Criu && (s.Watcher == nil || !s.Watcher.Alive())
			return false, err
		}
		s.Env.Log.Warn("waiting for a killed process to exit", "process", who, "session", s.Name())
		if err := owner.WaitExit(ctx); err != nil {
			return false, fmt.Errorf("%s was killed, but does not exit: %w", who, err)
		}
	}
	return false, nil
}
