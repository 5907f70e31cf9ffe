package hooks

import (
	"context"
	"errors"
	"fmt"
	"os"

	"cucriu/hooks/preflight"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// A migration has one copy of a job here and one there, both complete and held, until it is
// decided which of them goes on. The session of a dump or restore with a hold does not come to
// its end with its criu. A dump's processes stay stopped and parked, with their GPU state in the
// image; a restore's have their GPU state back and are still parked. The holder decides with
// [Hook.Decide]. If it ends without a decision, the watcher does what the hold says.

// ErrDecided is wrapped by the error of a decision that comes too late: another has been made.
var ErrDecided = errors.New("it has been decided otherwise")

// errHeld ends the way back at the point where a held restore waits for its decision.
var errHeld = errors.New("the job is complete, and held until it is decided what becomes of it")

// Decide says what becomes of a held job, and does it. It may be called again, with the same
// decision: then it goes on with what an earlier call has not finished. [ErrNotBack] is wrapped as
// in [Hook.Recover]. The error is [os.ErrNotExist] if there is no hold of this name.
func (h *Hook) Decide(ctx context.Context, id string, decision journal.Decision) (Status, error) {
	h = h.Filled()
	s, err := h.holdNamed(ctx, id)
	if err != nil {
		return Status{}, err
	}
	defer func() { s.LetGo() }()
	if made := s.decided(); made != journal.DecisionNone && made != decision {
		return StatusOf(s.Session), fmt.Errorf("%w: migration %s: %s", ErrDecided, id, decidedText(&s.Record))
	}
	if s.Outcome != "" {
		return StatusOf(s.Session), nil
	}
	ctx = context.WithoutCancel(ctx) // it is not given up half way: each step has its timeout
	if err := s.decide(decision); err != nil {
		if decision == journal.DecisionNone || decision != s.Hold.IfAbandoned {
			return StatusOf(s.Session), err
		}
		// What happens without a decision may happen without a record of it.
		h.Log.Warn("the run directory cannot be written; the job is brought to its end all the same", "migration", id, "error", err)
	}
	if s, err = h.awaitCriuOf(ctx, s); err != nil {
		return StatusOf(s.Session), fmt.Errorf("%w: %w", ErrNotBack, err)
	}
	if s.Outcome != "" { // by its own program, which knows the decision
		return StatusOf(s.Session), nil
	}
	s.Hold.Decision = decision // it may not be in the journal
	if err := h.conclude(ctx, s); err != nil {
		h.noteStuck(s, err)
		return StatusOf(s.Session), fmt.Errorf("%w: %w", ErrNotBack, err)
	}
	return StatusOf(s.Session), nil
}

// Promise notes that the other side may count on a held job from now on: only a decision ends it,
// and not the end of the holder.
func (h *Hook) Promise(ctx context.Context, id string) error {
	h = h.Filled()
	s, err := h.holdNamed(ctx, id)
	if err != nil {
		return err
	}
	defer s.LetGo()
	if !s.Held() {
		return fmt.Errorf("migration %s: the job is not held here", id)
	}
	if err := s.requireHoldable(); err != nil {
		return err
	}
	s.Hold.IfAbandoned = journal.DecisionWait
	s.Message = fmt.Sprintf("complete, and stopped until %s says what it has decided (migration %s)", s.Hold.Peer, id)
	return s.Save()
}

// NoteTold notes that the other side knows what was decided. Until then the session of a job that
// was ended here is kept.
func (h *Hook) NoteTold(ctx context.Context, id string) error {
	h = h.Filled()
	s, err := h.holdNamed(ctx, id)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer s.LetGo()
	s.Hold.Told = true
	if s.Kind == journal.KindDump {
		h.GiveBackSockets(id)
		h.dropSockets(s.Hold)
	}
	return s.Save()
}

// requireHoldable fails if a process of the tree has ended.
func (s *session) requireHoldable() error {
	for _, id := range s.holdIdents() {
		process, err := proc.Reopen(id)
		if err != nil {
			return fmt.Errorf("a process of the restored job has ended: %w", err)
		}
		process.Close()
	}
	return nil
}

func (s *session) holdIdents() []proc.Ident {
	ids := journal.IdentsOf(s.Members)
	if s.Root != nil {
		ids = append(ids, *s.Root)
	}
	return ids
}

// Held returns the session of a hold, as it stands. The error is [os.ErrNotExist] if there is none.
func (h *Hook) Held(id string) (*journal.Session, error) {
	return journal.FindHold(h.Filled().Config.RunDir, id)
}

// holdNamed finds and locks the session of a hold.
func (h *Hook) holdNamed(ctx context.Context, id string) (*session, error) {
	read, err := journal.FindHold(h.Config.RunDir, id)
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, h.Config.Restore.Timeout) // its watcher may be at work on it
	defer cancel()
	locked, err := journal.LoadWithin(waiting, read.Dir())
	if err != nil {
		return nil, err
	}
	return h.takeOn(locked), nil
}

// decide makes a decision durable. Nothing is done about it before.
func (s *session) decide(decision journal.Decision) error {
	s.Hold.Decision = decision
	if err := s.Save(); err != nil {
		return err
	}
	return s.failpoint(context.Background(), string(s.Kind)+".decided")
}

// decided returns what was decided. A session that came to its end by itself is as good as a
// decision: a dump that failed has brought its job back, a restore that failed has ended its copy.
func (s *session) decided() journal.Decision {
	switch {
	case s.Hold.Decision != journal.DecisionNone || s.Outcome == "":
		return s.Hold.Decision
	case s.Kind == journal.KindRestore:
		return journal.DecisionEnd
	}
	return journal.DecisionGo
}

// awaitCriuOf waits until the session's criu has ended. Until then the program that runs it may
// still make or stop processes, and needs the session for its stages. It returns the session as
// it is then, locked.
func (h *Hook) awaitCriuOf(ctx context.Context, s *session) (*session, error) {
	criu, err := proc.Reopen(s.Criu)
	if errors.Is(err, proc.ErrGone) || errors.Is(err, proc.ErrElsewhere) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	defer criu.Close()
	ctx, cancel := context.WithTimeout(ctx, h.Config.Restore.Timeout)
	defer cancel()
	s.LetGo()
	if err := criu.WaitExit(ctx); err != nil {
		err = fmt.Errorf("criu, process %d, does not end: %w", s.Criu.PID, err)
		return s, err
	}
	locked, err := journal.LoadWithin(ctx, s.Dir())
	if err != nil {
		return s, err
	}
	return h.takeOn(locked), nil
}

// refuseEnded ends the processes of a restore if it was decided meanwhile that they do not go on.
func (h *Hook) refuseEnded(ctx context.Context, s *session) error {
	if s.Hold == nil || s.Hold.Decision != journal.DecisionEnd {
		return nil
	}
	if _, err := h.concludeHeld(ctx, s); err != nil {
		return err
	}
	return fmt.Errorf("%w: migration %s: %s", ErrDecided, s.Hold.ID, decidedText(&s.Record))
}

func decidedText(r *journal.Record) string {
	switch {
	case r.Hold.Decision == journal.DecisionGo:
		return "the job goes on here"
	case r.Hold.Decision == journal.DecisionEnd:
		return "the job was ended here"
	case r.Message != "":
		return r.Message
	}
	return "the job is not held here"
}

// concludeHeld brings a hold to its end, as far as there is a decision. It reports whether there
// is nothing more to do now: the session is over, or waits for a decision.
func (h *Hook) concludeHeld(ctx context.Context, s *session) (done bool, err error) {
	if s.Hold == nil {
		return false, nil
	}
	if s.Hold.Undecided() {
		abandoned, err := s.abandoned()
		switch {
		case err != nil:
			return true, err
		case !abandoned:
			return s.Held(), nil
		case s.Hold.IfAbandoned == journal.DecisionWait:
			return true, nil
		}
		if err := s.decide(s.Hold.IfAbandoned); err != nil {
			return true, err
		}
	}
	if s.Hold.Decision == journal.DecisionEnd {
		if s.Kind == journal.KindRestore && s.Root == nil { // criu was killed before anybody knew
			var suspects []int
			if s.Root, suspects, err = s.orphanedRoot(); err != nil {
				return true, err
			}
			if len(suspects) > 0 {
				h.Log.Warn("a process may be what this restore's criu has left behind, or another restore's: it is left alone", "session", s.Name(), "processes", suspects)
			}
		}
		if s.Kind == journal.KindDump {
			err = h.endDumped(ctx, s)
		} else {
			err = s.killTree()
		}
		if err != nil {
			return true, err
		}
		if s.Kind == journal.KindRestore {
			h.ReleaseSockets(s.Hold.ID, s.Hold.Sockets)
			return true, s.close(journal.OutcomeKilled, "the job does not go on here (migration "+s.Hold.ID+")")
		}
		h.dropSockets(s.Hold)
		return true, s.close(journal.OutcomeMoved, "the job goes on at "+s.Hold.Peer+" (migration "+s.Hold.ID+")")
	}
	if s.Kind == journal.KindDump {
		h.takeBackSockets(s.Hold)
	}
	return false, nil
}

// abandoned reports whether the holder has ended.
func (s *session) abandoned() (bool, error) {
	holder, err := proc.Reopen(s.Hold.Holder)
	if err == nil {
		holder.Close()
		return false, nil
	}
	if errors.Is(err, proc.ErrElsewhere) {
		return false, nil
	}
	if errors.Is(err, proc.ErrGone) {
		return true, nil
	}
	return false, err
}

// awaitHolder waits until the holder of a held job has ended. The session must not be locked: the
// holder decides.
func (h *Hook) awaitHolder(ctx context.Context, s *session) error {
	holder, err := proc.Reopen(s.Hold.Holder)
	if errors.Is(err, proc.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer holder.Close()
	return holder.WaitExit(ctx)
}

// fateMembers are the processes by which the fate of a job is judged: those that use CUDA or, if
// none does, the root.
func (s *session) fateMembers() []journal.Member {
	if len(s.Members) > 0 || s.Root == nil {
		return s.Members
	}
	var name string
	if status, err := proc.ReadStatus(s.Root.PID); err == nil {
		name = status.Name
	}
	return []journal.Member{{Process: preflight.Process{Ident: *s.Root, Name: name}}}
}
