package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/failpoint"
	"cucriu/internal/jobs"
	"cucriu/internal/jobs/store"
	"cucriu/internal/migrate/commit"
)

// jobSource is the source's side of the move of a long job.
type jobSource struct {
	departure
	job     jobs.Local
	lock    *jobs.MoveLock
	view    *store.Store
	there   map[string]uint32 // the checkpoints that the destination has
	round   int
	asked   bool  // the supervisor has been asked, and may have ended the job
	notBack error // why the job does not run here, although it is to
	// recovering says that this is not the program that began.
	recovering bool
	returned   string // why the destination gave the job back
}

func newJobSource(hook *hooks.Hook, job jobs.Local, o Options) *jobSource {
	return &jobSource{
		job: job, there: make(map[string]uint32),
		departure: departure{
			hook: hook, options: o, begun: time.Now(),
			manner: manner{
				args:       []string{jobArg},
				settle:     func(decision string) (string, any) { return saySettleJob, jobSettle{job.Dir, decision} },
				patience:   startPatience + time.Minute, // it resumes the job before it answers
				triesAgain: true,
			},
		},
	}
}

// MigrateJob moves a long job with its checkpoints to another host, where a supervisor goes on with
// it. After an error the job goes on here, unless the error wraps [hooks.ErrNotBack]. If ctx ends
// before the destination is ready, the move is given up.
func MigrateJob(ctx context.Context, hook *hooks.Hook, job jobs.Local, o Options) (Result, error) {
	s := newJobSource(hook.Filled(), job, o)
	defer s.close()
	err := s.prepare(ctx)
	if err != nil || o.DryRun {
		return s.result, preflight.AsRefusal(err)
	}
	err = s.perform(ctx)
	s.result.Total = time.Since(s.begun)
	return s.result, err
}

// prepare finds the destination, and whether the job can move there. Nothing is touched.
func (s *jobSource) prepare(ctx context.Context) (err error) {
	if err := s.options.fill(); err != nil {
		return err
	}
	if !s.job.Runs() {
		if s.job.PID == 0 {
			return &jobs.NoSupervisorError{Job: s.job}
		}
		return fmt.Errorf("%s cannot move now, its state is %q: see cucriu jobs list", s.job.Name, s.job.State)
	}
	of, err := jobs.Describe(s.job.Dir)
	if err != nil {
		return err
	}
	if of.Attached {
		return fmt.Errorf("%s reads from its cucriu run here (--tty): it would read nothing there", s.job.Name)
	}
	if s.lock, err = jobs.TryLockMove(s.job.Dir); err != nil {
		return err
	}
	if m, err := jobs.ReadMove(s.job.Dir); err != nil {
		return err
	} else if m.State == jobs.MoveLeaving || m.State == jobs.MoveStays {
		return fmt.Errorf("an earlier move of %s, to %s, was cut off, and that host is yet to be told: run cucriu recover", s.job.Name, m.Peer)
	}
	if s.view, err = store.View(s.job.Dir); err != nil {
		return err
	}
	owner, err := s.view.Owner()
	if err != nil {
		return err
	}
	s.result.ID, s.result.Host = newID(), s.options.Host
	if err := s.phase("connect", func() error { return s.connect(ctx) }); err != nil {
		return err
	}
	newest, _, err := s.newest()
	if err != nil {
		return err
	}
	return s.phase("prepare", func() error {
		m := jobMessage{Dir: of.Dir, Name: of.Name, Begun: of.Begun, Owner: owner.Token, Bytes: newest.Bytes, Start: s.options.Start}
		if err := s.remote.Send(sayJob, m); err != nil {
			return err
		}
		var has jobWelcome
		if err := s.remote.expect(ctx, sayWelcome, &has); err != nil {
			return err
		}
		for _, l := range has.Have {
			s.there[l.Name] = l.CRC32C
		}
		return nil
	})
}

// newest returns the newest checkpoint that can be used.
func (s *jobSource) newest() (newest store.Checkpoint, found bool, err error) {
	all, err := s.view.Checkpoints()
	for _, c := range all {
		if c.Err == nil && c.GivenUp == "" {
			newest, found = c, true
		}
	}
	return newest, found, err
}

// perform moves the job.
func (s *jobSource) perform(ctx context.Context) error {
	m := jobs.Move{ID: s.result.ID, State: jobs.MoveLeaving, Peer: s.options.Host, RSH: s.options.RSH, Remote: s.options.Remote}
	if err := m.Write(s.job.Dir); err != nil {
		return preflight.AsRefusal(err)
	}
	err := failpoint.Hit(ctx, "job.leaving", 0)
	if err == nil {
		err = s.move(ctx)
	}
	if err != nil {
		return s.giveUp(err)
	}
	if err := failpoint.Hit(ctx, "job.ready", 0); err != nil {
		return s.giveUp(err)
	}
	if err := s.on(commit.Ready); err != nil {
		return err
	}
	if s.returned != "" {
		return preflight.AsFailure(fmt.Errorf("%s could not resume %s: %s; it goes on here", s.options.Host, s.job.Name, s.returned))
	}
	s.result.Pause = time.Since(s.halted)
	return nil
}

// move brings the job to the destination, which has promised it when move returns.
func (s *jobSource) move(ctx context.Context) error {
	if needed, err := s.needsFirst(ctx); err != nil {
		return err
	} else if needed {
		if err := s.phase("first checkpoint", func() error { return s.ask(ctx, jobs.AskCheckpoint) }); err != nil {
			return err
		}
	}
	if err := s.phase("ahead", func() error { return s.send(ctx, false) }); err != nil {
		return err
	}
	s.result.Ahead = s.result.Bytes
	if err := failpoint.Hit(ctx, "job.ahead", 0); err != nil {
		return err
	}
	s.halted, s.asked = time.Now(), true
	if err := s.phase("last checkpoint", func() error { return s.ask(ctx, jobs.AskMove) }); err != nil {
		return err
	}
	if err := failpoint.Hit(ctx, "job.stopped", 0); err != nil {
		return err
	}
	if err := s.phase("send", func() error { return s.send(ctx, true) }); err != nil {
		return err
	}
	s.result.Bytes -= s.result.Ahead
	newest, _, err := s.newest()
	if err != nil {
		return err
	}
	return s.phase("promise", func() error {
		if err := s.remote.Send(sayPromise, jobPromise{newest.Name}); err != nil {
			return err
		}
		return s.remote.expect(ctx, sayReady, nil)
	})
}

// needsFirst reports whether to make a checkpoint before any goes ahead. The destination judges by
// the newest, which says nothing about a job whose files are others by now.
func (s *jobSource) needsFirst(ctx context.Context) (bool, error) {
	newest, found, err := s.newest()
	if err != nil || !found || s.options.Precopy == PrecopyAlways {
		return true, err
	}
	findings, err := jobs.CheckFiles(ctx, newest.Dir)
	return err != nil || findings.Err() != nil, nil
}

// ask has the supervisor do something.
func (s *jobSource) ask(ctx context.Context, op string) error {
	_, err := jobs.Ask(ctx, s.hook.Config.RunDir, s.job, jobs.Request{Op: op}, nil)
	return err
}

// giveUp lets the job go on here, and says why it did not move.
func (s *jobSource) giveUp(cause error) error {
	refused := preflight.Refused(cause) && !s.asked
	if isLost(cause) {
		cause = fmt.Errorf("%s was lost: %w", s.options.Host, cause)
	}
	switch err := s.on(commit.Failed); {
	case err != nil:
		return errors.Join(preflight.AsFailure(cause), err)
	case refused:
		return preflight.AsRefusal(cause)
	}
	return preflight.AsFailure(fmt.Errorf("%w; %s goes on here", cause, s.job.Name))
}

func (s *jobSource) close() {
	s.departure.close()
	if s.lock != nil {
		if err := s.lock.Free(); err != nil && !errors.Is(err, os.ErrClosed) {
			s.hook.Log.Warn("the lock of the move", "error", err)
		}
	}
}
