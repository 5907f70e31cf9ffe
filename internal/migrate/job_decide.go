package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"cucriu/hooks"
	"cucriu/internal/failpoint"
	"cucriu/internal/jobs"
	"cucriu/internal/migrate/commit"
)

// jobState returns where the source of a long job stands in the commit protocol.
func jobState(m jobs.Move) commit.SourceState {
	switch m.State {
	case jobs.MoveLeaving:
		return commit.Undecided
	case jobs.MoveLeft:
		return commit.End
	}
	return commit.Back
}

// on answers an event, and the destination's answers to that, until both sides know what was
// decided. Its program has the lock of the record.
func (s *jobSource) on(e commit.Event) error {
	ctx := context.Background()
	for e != "" {
		m, err := jobs.ReadMove(s.job.Dir)
		if err == nil && m.ID != s.result.ID {
			err = errors.New("the record of the move was exchanged")
		}
		if err != nil {
			return fmt.Errorf("%w: %w", hooks.ErrNotBack, err)
		}
		state := jobState(m)
		next, do, err := commit.Source{State: state}.On(e)
		if err != nil {
			return err
		}
		if next.State != state {
			m.State = map[commit.SourceState]jobs.MoveState{commit.Back: jobs.MoveStays, commit.End: jobs.MoveLeft}[next.State]
			if err := m.Write(s.job.Dir); err != nil {
				return fmt.Errorf("%w: %w", hooks.ErrNotBack, err)
			}
		}
		if e, err = s.carryOut(ctx, m, do); err != nil {
			return errors.Join(s.notBack, err)
		}
		if e == commit.Unknown && next.State == commit.End {
			return fmt.Errorf("%w: %s has moved to %s, which does not know it any more: was its directory removed there? cucriu recover --take %s lets it go on here", hooks.ErrNotBack, s.job.Name, m.Peer, s.result.ID)
		}
	}
	return s.notBack
}

// carryOut does actions, and returns the destination's answer if it was told something.
func (s *jobSource) carryOut(ctx context.Context, m jobs.Move, do []commit.Action) (answer commit.Event, err error) {
	for _, action := range do {
		switch action {
		case commit.BringBack:
			if err := failpoint.Hit(ctx, "job.back", 0); err != nil {
				return "", err
			}
			err = s.bringBack(ctx)
		case commit.KillCopy: // its supervisor has ended it, before it has answered
			if err = failpoint.Hit(ctx, "job.left", 0); err == nil {
				err = jobs.RequireGone(s.hook.Config.RunDir, s.job.Dir)
			}
		case commit.SayCommit:
			answer, err = s.say(ctx, sayCommit)
		case commit.SayAbort:
			answer, err = s.say(ctx, sayAbort)
		case commit.Close:
			if m.State == jobs.MoveStays {
				err = jobs.RemoveMove(s.job.Dir)
			} else {
				m.Known = true
				err = m.Write(s.job.Dir)
			}
		}
		if err != nil {
			return "", err
		}
		if s.returned != "" && action == commit.SayCommit {
			return "", s.takeBack(ctx)
		}
	}
	return answer, nil
}

// takeBack lets a job go on here that the destination has given back.
func (s *jobSource) takeBack(ctx context.Context) error {
	if err := failpoint.Hit(ctx, "job.takeback", 0); err != nil {
		return err
	}
	if err := jobs.RemoveMove(s.job.Dir); err != nil {
		return fmt.Errorf("%w: %w", hooks.ErrNotBack, err)
	}
	return s.bringBack(ctx)
}

// bringBack waits until the job runs here. If it does not, the destination is told all the same
// that it stays, and the error is kept for later.
func (s *jobSource) bringBack(ctx context.Context) error {
	if s.recovering || s.notBack != nil {
		return nil // whoever has started the supervisor starts it again
	}
	err := s.phase("bring back", func() error { return s.awaitBack(ctx) })
	if errors.Is(err, hooks.ErrNotBack) {
		s.notBack, err = err, nil
	}
	return err
}

const (
	// backPatience is how long a job may take to be resumed here.
	backPatience = 30 * time.Minute
	// missingPatience is how long its supervisor may not be seen.
	missingPatience = 5 * time.Second
)

// awaitBack waits until the job runs here: its supervisor resumes it once it is decided that the
// job stays.
func (s *jobSource) awaitBack(ctx context.Context) error {
	missing := time.Now()
	for deadline := time.Now().Add(backPatience); time.Now().Before(deadline); time.Sleep(startLook) {
		local, err := jobs.Find(s.hook.Config.RunDir, s.job.Dir)
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", hooks.ErrNotBack, err)
		case local.Runs(), local.State == jobs.StateFinished, local.State == jobs.StateEnded, local.State == jobs.StateUnattended:
			return nil
		case local.PID != 0:
			missing = time.Now()
		case time.Since(missing) > missingPatience:
			text := "its cucriu run has ended meanwhile: the same command goes on from its newest checkpoint"
			if local.Failure != nil {
				text += "; it said: " + local.Failure.Message
			}
			return fmt.Errorf("%w: %s does not run here: %s", hooks.ErrNotBack, s.job.Name, text)
		}
	}
	return fmt.Errorf("%w: %s is not back after %v: see cucriu jobs list", hooks.ErrNotBack, s.job.Name, backPatience)
}

// say tells the destination what was decided, and returns what it answers: nothing if it gives the
// job back.
func (s *jobSource) say(ctx context.Context, decision string) (commit.Event, error) {
	answer, err := s.departure.say(ctx, decision)
	if err == nil && answer.Kind != sayReturned {
		return commit.Event(answer.Kind), nil
	}
	if err == nil {
		var r jobReturned
		if err = answer.Decode(&r); err == nil {
			s.returned = cmp.Or(printable(r.Why, 4000), "it does not say why")
			return "", nil
		}
	}
	if !errors.Is(err, s.failure) {
		err = errors.Join(err, s.failure)
	}
	text := fmt.Sprintf("%s goes on here, but %s could not be told so: %v; if it has the job's checkpoints, they do no harm; run cucriu recover here when it can be reached",
		s.job.Name, s.options.Host, err)
	if decision == sayCommit {
		text = fmt.Sprintf("%s has left this host, and %s, which has it complete, has not said that it runs there: %v; run cucriu recover here when it can be reached; or there: cucriu recover --take %s",
			s.job.Name, s.options.Host, err, s.result.ID)
	}
	return "", &undeliveredError{text, decision, err}
}
