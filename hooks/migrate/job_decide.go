package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cucriu/hooks"
	"cucriu/hooks/jobs"
	"cucriu/hooks/migrate/commit"
	"cucriu/hooks/migrate/wire"
	"cucriu/internal/failpoint"
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
		if err == nil && m.ID != s.id {
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
			return fmt.Errorf("%w: %s has moved to %s, which does not know it any more: was its directory removed there? cucriu recover --take %s lets it go on here", hooks.ErrNotBack, s.job.Name, m.Peer, s.id)
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
				err = jobs.RequireGone(s.job.Dir)
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

// say tells the destination what was decided, over the connection that there is or, if that is
// lost, over new ones.
func (s *jobSource) say(ctx context.Context, decision string) (answer commit.Event, err error) {
	err = s.phase("tell "+s.options.Host, func() error {
		if s.remote != nil {
			if err = s.remote.Send(decision, nil); err == nil {
				answer, err = s.answer(ctx)
			}
			if err == nil || !isLost(err) {
				return err
			}
			s.hook.Log.Warn("the connection to the destination is lost: trying another", "error", err)
			s.remote.Close()
			s.remote = nil
		}
		for deadline, pause := time.Now().Add(failpoint.Patience(settlePatience)), failpoint.Patience(time.Second); ; pause = min(2*pause, 10*time.Second) {
			if err = s.connect(ctx); err == nil {
				if err = s.remote.Send(saySettleJob, jobSettle{s.job.Dir, decision}); err == nil {
					answer, err = s.answer(ctx)
				}
			}
			if err == nil || !time.Now().Add(pause).Before(deadline) {
				return err
			}
			if s.remote != nil {
				s.remote.Close()
				s.remote = nil
			}
			time.Sleep(pause)
		}
	})
	if err == nil {
		return answer, nil
	}
	return "", &jobUndeliveredError{job: s.job, host: s.options.Host, id: s.id, decision: decision, cause: errors.Join(err, s.failure)}
}

// answer waits for the destination's answer to a decision. It resumes the job before it answers.
func (s *jobSource) answer(ctx context.Context) (commit.Event, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience+time.Minute, wire.ErrSilent)
	defer cancel()
	for {
		m, err := s.remote.Receive(ctx)
		if err != nil {
			return "", err
		}
		switch m.Kind {
		case sayRunning:
			var r running
			if err := m.Decode(&r); err != nil {
				return "", err
			}
			s.result.PID = r.PID
			return commit.Running, nil
		case sayReturned:
			var r jobReturned
			if err := m.Decode(&r); err != nil {
				return "", err
			}
			s.returned = printable(r.Why, 4000)
			if s.returned == "" {
				s.returned = "it does not say why"
			}
			return "", nil
		case sayEnded:
			return commit.Ended, nil
		case sayUnknown:
			return commit.Unknown, nil
		case sayFailed:
			s.failure = failureOf(m) // it tries again, or ends the connection
			if there := new(thereError); errors.As(s.failure, &there) && there.asked == sayAbort {
				return "", s.failure
			}
		}
	}
}

// jobUndeliveredError says what is where, and what decides.
type jobUndeliveredError struct {
	job      jobs.Local
	host, id string
	decision string
	cause    error
}

func (e *jobUndeliveredError) Error() string {
	if e.decision == sayCommit {
		return fmt.Sprintf("%s has left this host, and %s, which has it complete, has not said that it runs there: %v; run cucriu recover here when it can be reached; or there: cucriu recover --take %s",
			e.job.Name, e.host, e.cause, e.id)
	}
	return fmt.Sprintf("%s goes on here, but %s could not be told so: %v; if it has the job's checkpoints, they do no harm; run cucriu recover here when it can be reached", e.job.Name, e.host, e.cause)
}

func (e *jobUndeliveredError) Unwrap() error { return e.cause }

// Is makes the error known as [ErrUndelivered] and, if the job runs nowhere, as [hooks.ErrNotBack].
func (e *jobUndeliveredError) Is(target error) bool {
	return target == ErrUndelivered || target == hooks.ErrNotBack && e.decision == sayCommit
}
