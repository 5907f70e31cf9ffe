package hooks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cucriu/criuutil/proc"
	"cucriu/hooks/journal"
)

// Recover brings every orphaned session to a good end. A session is orphaned if its criu
// has ended and neither hook nor watcher is at work on it. Recover returns the sessions
// that it worked on, and those whose watcher has failed and tries again. The errors of those
// that are not finished wrap [ErrNotBack].
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
	recovered, err := h.recoverAll(ctx, dirs)
	for _, dir := range dirs {
		s, readErr := journal.Read(dir)
		if readErr != nil || s.Outcome != "" || !s.Stuck || s.Elsewhere() || slices.ContainsFunc(recovered, func(r Status) bool { return r.Session == s.Name() }) {
			continue
		}
		recovered = append(recovered, StatusOf(s))
		err = errors.Join(err, fmt.Errorf("%w: session %s: its watcher goes on trying: %s", ErrNotBack, s.Name(), strings.TrimPrefix(s.Message, stuckPrefix)))
	}
	return recovered, err
}

// recoverAll works on the orphans among sessions.
func (h *Hook) recoverAll(ctx context.Context, dirs []string) ([]Status, error) {
	recovered := []Status{} // not nil: null is no list in JSON
	var errs []error
	for _, dir := range dirs {
		s, err := h.recoverOne(ctx, dir)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: session %s: %w", ErrNotBack, filepath.Base(dir), err))
		}
		if s != nil {
			recovered = append(recovered, StatusOf(s.Session))
		}
	}
	return recovered, errors.Join(errs...)
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
	recovered, err := h.recoverAll(ctx, dirs)
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

func (h *Hook) recoverOne(ctx context.Context, dir string) (*session, error) {
	read, err := journal.Load(dir, false)
	if errors.Is(err, journal.ErrBusy) || errors.Is(err, os.ErrNotExist) {
		return nil, nil // at work, or killed before the journal was written and anything touched
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
		if owned, err := s.owned(); err != nil || owned {
			return nil, err
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

// owned reports whether somebody is left who will take the session on: a criu that lives
// calls its hook again, and a watcher waits for its turn. A third program would get between
// them. If an owner is in another pid namespace, nobody here can tell whether it lives, and
// the session counts as owned.
func (s *session) owned() (bool, error) {
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
		if err == nil {
			owner.Close()
			return true, nil
		}
		if errors.Is(err, proc.ErrElsewhere) {
			return true, nil
		}
		if !errors.Is(err, proc.ErrGone) {
			return false, err
		}
	}
	return false, nil
}
