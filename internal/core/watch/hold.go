package watch

import (
	"context"
	"errors"
	"fmt"
	"os"

	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/proc"
)

// A migration has a copy of a job at each end, both complete and held, until it is decided which of
// them goes on. A session with a hold does not end with its criu: a dump's processes stay stopped and
// parked, with their GPU state in the image; a restore's have it back and are still parked. The holder
// decides with [Decide]. If it ends without a decision, the watcher does what the hold says.

// ErrDecided is wrapped by the error of a decision that comes too late: another has been made.
var ErrDecided = errors.New("the migration was decided otherwise")

// Decide says what becomes of a held job, and does it. With the same decision it may be called again,
// and goes on with what is not finished. It wraps [session.ErrNotBack] as [Recover] does, and is
// [os.ErrNotExist] if there is no hold of this name.
func Decide(ctx context.Context, env *session.Env, id string, decision journal.Decision) error {
	s, err := holdNamed(ctx, env, id)
	if err != nil {
		return err
	}
	defer func() { s.Unlock() }()
	if made := decided(&s.Record); made != journal.Undecided && made != decision {
		return fmt.Errorf("%w: migration %s: %s", ErrDecided, id, decidedText(&s.Record))
	}
	if s.Outcome != "" {
		return nil
	}
	ctx = context.WithoutCancel(ctx) // it is not given up half way: each step has its timeout
	if err := decide(s, decision); err != nil {
		if decision == journal.Undecided || decision != s.Hold.IfAbandoned {
			return err
		}
		// What happens without a decision may happen without a record of it.
		env.Log.Warn("the run directory cannot be written; the decision about the job is carried out anyway", "migration", id, "error", err)
	}
	if s, err = awaitCriuOf(ctx, s); err != nil {
		return fmt.Errorf("%w: %w", session.ErrNotBack, err)
	}
	if s.Outcome != "" { // by its own program, which knows the decision
		return nil
	}
	s.Hold.Decision = decision // it may not be in the journal
	if err := conclude(ctx, s); err != nil {
		s.NoteStuck(err)
		return fmt.Errorf("%w: %w", session.ErrNotBack, err)
	}
	return nil
}

// Promise notes that the other side may count on a held job from now on: only a decision ends it, and
// not the end of the holder.
func Promise(ctx context.Context, env *session.Env, id string) error {
	s, err := holdNamed(ctx, env, id)
	if err != nil {
		return err
	}
	defer s.Unlock()
	if !s.Held() {
		return fmt.Errorf("migration %s: the job is not held here", id)
	}
	if err := requireAlive(&s.Record); err != nil {
		return err
	}
	s.Hold.IfAbandoned = journal.StayHeld
	s.Message = fmt.Sprintf("complete, and stopped until %s reports its decision (migration %s)", s.Hold.Peer, id)
	return s.Save()
}

// NoteTold notes that the other side knows what was decided. Until then the session of a job that was
// ended here is kept.
func NoteTold(ctx context.Context, env *session.Env, id string) error {
	s, err := holdNamed(ctx, env, id)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer s.Unlock()
	s.Hold.PeerKnows = true
	return s.Save()
}

// requireAlive fails if a process of the tree has ended.
func requireAlive(r *journal.Record) error {
	ids := journal.IdentsOf(r.Members)
	if r.Root != nil {
		ids = append(ids, *r.Root)
	}
	for _, id := range ids {
		process, err := proc.Reopen(id)
		if err != nil {
			return fmt.Errorf("a process of the restored job has ended: %w", err)
		}
		process.Close()
	}
	return nil
}

// holdNamed finds and locks the session of a hold.
func holdNamed(ctx context.Context, env *session.Env, id string) (*session.Session, error) {
	read, err := journal.FindHold(env.Config.RunDir, id)
	if err != nil {
		return nil, err
	}
	waiting, cancel := env.Config.Restore.Within(ctx) // its watcher may be at work on it
	defer cancel()
	locked, err := journal.LoadWithin(waiting, read.Dir())
	if err != nil {
		return nil, err
	}
	return env.TakeOn(locked, session.ByCommand), nil
}

// decide makes a decision durable. Nothing is done about it before.
func decide(s *session.Session, decision journal.Decision) error {
	s.Hold.Decision = decision
	if err := s.Save(); err != nil {
		return err
	}
	return s.Failpoint(context.Background(), string(s.Kind)+".decided")
}

// decided returns what was decided. A session that came to its end by itself is as good as a decision:
// a dump that failed has brought its job back, a restore that failed has ended its copy.
func decided(s *journal.Record) journal.Decision {
	switch {
	case s.Hold.Decision != journal.Undecided || s.Outcome == "":
		return s.Hold.Decision
	case s.Kind == journal.KindRestore:
		return journal.EndHere
	}
	return journal.RunHere
}

// awaitCriuOf waits until the session's criu has ended: until then the program that runs it may still
// make or stop processes, and needs the session. It returns the session as it is then, locked.
func awaitCriuOf(ctx context.Context, s *session.Session) (*session.Session, error) {
	if gone, err := session.Gone(s.Criu); gone || errors.Is(err, proc.ErrElsewhere) {
		return s, nil
	} else if err != nil {
		return s, err
	}
	ctx, cancel := s.Env.Config.Restore.Within(ctx)
	defer cancel()
	s.Unlock()
	if err := session.AwaitExit(ctx, s.Criu); err != nil {
		return s, fmt.Errorf("criu, process %d, does not end: %w", s.Criu.PID, err)
	}
	locked, err := journal.LoadWithin(ctx, s.Dir())
	if err != nil {
		return s, err
	}
	return s.Env.TakeOn(locked, s.By), nil
}

// EndIfRefused ends the processes of a restore if it was decided meanwhile that they may not run.
func EndIfRefused(ctx context.Context, s *session.Session) error {
	if s.Hold == nil || s.Hold.Decision != journal.EndHere {
		return nil
	}
	if _, err := concludeHeld(ctx, s); err != nil {
		return err
	}
	return fmt.Errorf("%w: migration %s: %s", ErrDecided, s.Hold.ID, decidedText(&s.Record))
}

func decidedText(r *journal.Record) string {
	switch {
	case r.Hold.Decision == journal.RunHere:
		return "the job runs here"
	case r.Hold.Decision == journal.EndHere:
		return "the job was ended here"
	case r.Message != "":
		return r.Message
	}
	return "the job is not held here"
}

// concludeHeld brings a hold to its end, as far as there is a decision. It reports whether there is
// nothing more to do now: the session is over, or waits for a decision.
func concludeHeld(ctx context.Context, s *session.Session) (done bool, err error) {
	if s.Hold == nil {
		return false, nil
	}
	if s.Hold.Undecided() {
		isAbandoned, err := abandoned(&s.Record)
		switch {
		case err != nil:
			return true, err
		case !isAbandoned:
			return s.Held(), nil
		case s.Hold.IfAbandoned == journal.StayHeld:
			return true, nil
		}
		if err := decide(s, s.Hold.IfAbandoned); err != nil {
			return true, err
		}
	}
	if s.Hold.Decision != journal.EndHere {
		return false, nil
	}
	if s.Kind == journal.KindDump {
		if err := endDumped(ctx, s); err != nil {
			return true, err
		}
		return true, s.Close(journal.OutcomeMoved, "the job has moved to "+s.Hold.Peer+" (migration "+s.Hold.ID+")")
	}
	if s.Root == nil { // criu was killed before anybody knew
		if _, err := findRoot(s); err != nil {
			return true, err
		}
	}
	if err := endRestored(s); err != nil {
		return true, err
	}
	return true, s.Close(journal.OutcomeKilled, "the copy here was ended (migration "+s.Hold.ID+")")
}

// abandoned reports whether the holder has ended.
func abandoned(s *journal.Record) (bool, error) {
	gone, err := session.Gone(s.Hold.Holder)
	if errors.Is(err, proc.ErrElsewhere) {
		return false, nil
	}
	return gone, err
}
