package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"

	"cucriu/hooks"
	"cucriu/internal/journal"
	"cucriu/internal/migrate/commit"
)

// sourceState returns where the source stands in the commit protocol. Without a session the job
// was never held.
func sourceState(hook *hooks.Hook, id string) (commit.SourceState, error) {
	s, err := hook.Held(id)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return commit.Undecided, nil
	case err != nil:
		return "", err
	case s.Hold.Decision == journal.DecisionEnd:
		return commit.End, nil
	case s.Hold.Decision == journal.DecisionGo || s.Outcome != "":
		return commit.Back, nil
	}
	return commit.Undecided, nil
}

// on answers an event, and the destination's answers to that, until both sides know what was
// decided. It is not given up half way.
func (s *source) on(e commit.Event) error {
	ctx := context.Background()
	for {
		state, err := sourceState(s.hook, s.record.ID)
		if err != nil {
			return fmt.Errorf("%w: %w", hooks.ErrNotBack, err)
		}
		_, do, err := commit.Source{State: state}.On(e)
		if err != nil {
			return err
		}
		answer, err := s.carryOut(ctx, do)
		switch {
		case errors.Is(err, hooks.ErrDecided):
			continue // by the watcher or a recover: the state is another now
		case err != nil || answer == "":
			return err
		case answer == commit.Unknown && state == commit.End:
			return errors.Join(fmt.Errorf("%s has no copy of the job any more, and the one here was ended after it had said that it had one: was it restarted?", s.record.Host), s.record.remove(), hooks.ErrEnded)
		}
		e = answer
	}
}

// carryOut does actions, and returns the destination's answer if it was told something.
func (s *source) carryOut(ctx context.Context, do []commit.Action) (answer commit.Event, err error) {
	for _, action := range do {
		switch action {
		case commit.BringBack:
			if s.asked && s.remote != nil { // the sooner it ends its copy, the sooner the job has its sockets
				_ = s.remote.Send(sayAbort, nil)
			}
			err = s.decide(ctx, "bring back", journal.DecisionGo)
		case commit.KillCopy:
			err = s.decide(ctx, "end here", journal.DecisionEnd)
		case commit.SayCommit:
			answer, err = s.say(ctx, sayCommit)
		case commit.SayAbort:
			if s.hasEnded() {
				return "", s.ended()
			}
			answer, err = s.say(ctx, sayAbort)
			s.hook.GiveBackSockets(s.record.ID) // its criu may have been late
		case commit.Close:
			if err := s.hook.NoteTold(ctx, s.record.ID); err != nil { // then it is kept for longer
				s.hook.Log.Warn("the journal does not say that the destination knows", "migration", s.record.ID, "error", err)
			}
			err = s.record.remove()
		default:
			err = fmt.Errorf("%q is nothing that a source does", action)
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

// hasEnded reports whether the job, which was to go on here, is not there any more.
func (s *source) hasEnded() bool {
	session, err := s.hook.Held(s.record.ID)
	if err != nil {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", s.record.RootPID))
		return errors.Is(err, os.ErrNotExist)
	}
	return session.Outcome == journal.OutcomeGone
}

// ended closes the migration of a job that has ended here while it was to go on. The destination
// is not told to drop its copy: if it has one, that is the last. What it has not promised it drops
// by itself.
func (s *source) ended() error {
	return errors.Join(fmt.Errorf("%w: process %d (%s) has ended here meanwhile; if %s holds a complete copy, as cucriu status says there, it can go on there: cucriu recover --take %s",
		hooks.ErrEnded, s.record.RootPID, s.record.Name, s.record.Host, s.record.ID), s.record.remove())
}

// decide makes a decision and carries it out. A job that was never held needs none.
func (s *source) decide(ctx context.Context, name string, decision journal.Decision) error {
	return s.phase(name, func() error {
		_, err := s.hook.Decide(ctx, s.record.ID, decision)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
}

// say tells the destination what was decided, and returns what it answers.
func (s *source) say(ctx context.Context, decision string) (commit.Event, error) {
	answer, err := s.departure.say(ctx, decision)
	if err == nil {
		return commit.Event(answer.Kind), nil
	}
	text := fmt.Sprintf("the job goes on here, but %s could not be told so: %v; if it holds a copy, that stays stopped; "+
		"when it can be reached, run here: cucriu recover; or there: cucriu recover --drop %s", s.record.Host, err, s.record.ID)
	if decision == sayCommit {
		text = fmt.Sprintf("the job has left this host, and %s, which holds it complete and stopped, could not be told to let it run: %v; "+
			"when it can be reached, run here: cucriu recover; or there: cucriu recover --take %s", s.record.Host, err, s.record.ID)
	}
	return "", &undeliveredError{text, decision, err}
}
