package hooks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// Recover brings every orphaned session to a good end. A session is orphaned if its criu
// has ended and neither hook nor watcher is at work on it. Those that were killed are waited
// for. Recover returns the sessions that it worked on, and those on which somebody else is at
// work. The errors of those that are not finished wrap [ErrNotBack].
func (h *Hook) Recover(ctx context.Context) ([]Status, error) {
	h = h.Filled()
	sessions, err := journal.MakeSessionsDir(h.Config.RunDir)
	if err != nil {
		return nil, err
	}
	dirs, err := journal.Dirs(sessions)
	if err != nil {
		return nil, err
	}
	return h.recoverAll(ctx, dirs, true)
}

// recoverAll works on the orphans among sessions. If strict is set, a session on which somebody
// is at work is an error.
func (h *Hook) recoverAll(ctx context.Context, dirs []string, strict bool) ([]Status, error) {
	recovered := []Status{} // not nil: null is no list in JSON
	var errs []error
	waiting, cancel := context.WithTimeout(ctx, h.Config.Lock.Timeout) // for the locks of all
	defer cancel()
	for _, dir := range dirs {
		s, err := h.recoverOne(ctx, waiting, dir, strict)
		if errors.As(err, new(*AtWorkError)) && !strict {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: session %s: %w", ErrNotBack, filepath.Base(dir), err))
		}
		if s != nil {
			recovered = append(recovered, StatusOf(s.Session))
		}
	}
	return recovered, errors.Join(errs...)
}

// AtWorkError says who is at work on a session, which [Hook.Recover] then leaves alone.
type AtWorkError struct{ text string }

func (e *AtWorkError) Error() string { return e.text }

// atWork returns an error that says that somebody is at work on the session.
func (s *session) atWork(who string) error {
	if s.Stuck {
		return &AtWorkError{"its watcher goes on trying: " + strings.TrimPrefix(s.Message, stuckPrefix)}
	}
	return &AtWorkError{fmt.Sprintf("%s is at work on it (step %s): wait for it, then run cucriu recover again", who, s.Step)}
}

// recoverFirst brings orphaned jobs back before another session begins: the job of that
// session may be among them. What does not come back at once is left to cucriu recover.
func (h *Hook) recoverFirst(ctx context.Context) {
	if journal.IsForeign(h.Config.RunDir) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, h.Config.Lock.Timeout)
	defer cancel()
	sessions, err := journal.MakeSessionsDir(h.Config.RunDir)
	if err != nil {
		return // what needs the directory says what is wrong with it
	}
	dirs, err := journal.Dirs(sessions)
	if err != nil {
		return
	}
	recovered, err := h.recoverAll(ctx, dirs, false)
	for _, s := range recovered {
		if s.Outcome == "" {
			continue // the error tells of it
		}
		h.Log.Info("brought an orphaned job to its end first", "session", s.Session, "outcome", s.Outcome)
	}
	if err != nil {
		h.Log.Warn("an earlier job is not back yet: cucriu status shows it", "error", err)
	}
}

// recoverOne brings a session to its end if it is orphaned. If strict is set, it waits for
// the lock of a session until waiting ends: who was killed may still have it.
func (h *Hook) recoverOne(ctx, waiting context.Context, dir string, strict bool) (*session, error) {
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
			s := h.takeOn(now)
			return s, s.atWork("its hook, watcher or command")
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // killed before the journal was written and anything touched
	}
	if err != nil {
		return nil, err
	}
	s := h.takeOn(read)
	defer s.LetGo()
	s.By, s.progress = byRecover, nil                           // it is not the job that somebody looks at
	if s.Held() && s.Hold.IfAbandoned == journal.DecisionWait { // somebody must decide
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
		if owned, err := h.owned(ctx, s); err != nil {
			return s, err
		} else if owned {
			return nil, nil
		}
	}
	if err := h.conclude(ctx, s); err != nil {
		h.noteStuck(s, err)
		return s, err
	}
	return s, nil
}

// stuckPrefix begins the message of a session whose job is not back yet.
const stuckPrefix = "not back yet: "

// noteStuck notes why a job is not back yet, for everybody who waits for it or asks.
func (h *Hook) noteStuck(s *session, err error) {
	if s.Outcome == "" {
		s.Stuck, s.Message = true, stuckPrefix+err.Error()
		h.note(s)
	}
}

// owned returns an [AtWorkError] if somebody is left who will take the session on: a criu that
// lives calls its hook again, and a watcher waits for its turn. A third program would get between
// them. Who was killed, but is not gone yet, is waited for. If an owner is in another pid
// namespace, nobody here can tell whether it lives, and owned reports that.
func (h *Hook) owned(ctx context.Context, s *session) (elsewhere bool, err error) {
	owners := []proc.Ident{s.Criu}
	if s.Kind == journal.KindRestore && s.Step == journal.StepPostResume {
		owners = nil // criu calls nobody after that, and lives on for as long as the job
	}
	if s.Watcher != nil {
		owners = append(owners, *s.Watcher)
	}
	if s.Hold.Undecided() {
		owners = append(owners, s.Hold.Holder)
	}
	for _, id := range owners {
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
			return false, s.atWork(who)
		}
		h.Log.Warn("waiting for the end of a process that was killed", "process", who, "session", s.Name())
		if err := owner.WaitExit(ctx); err != nil {
			return false, fmt.Errorf("%s was killed and does not end: %w", who, err)
		}
	}
	return false, nil
}
