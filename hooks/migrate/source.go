package migrate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"cucriu/criuutil/proc"
	"cucriu/hooks"
	"cucriu/hooks/journal"
	"cucriu/hooks/migrate/commit"
	"cucriu/hooks/migrate/prepare"
	"cucriu/hooks/migrate/wire"
	"cucriu/hooks/preflight"
)

// source is the source's side of one migration.
type source struct {
	hook     *hooks.Hook
	options  Options
	record   *Record
	identity *wire.Identity
	remote   *remote // nil before there is one, and after it was lost
	stage    *stage
	job      *prepare.Job
	begun    time.Time
	locked   time.Time // when the job came to a halt
	limit    *pauseLimit
	result   Result
}

// Migrate moves the job whose root process is given to another host. After an error the job goes
// on here, unless the error wraps [hooks.ErrNotBack] or [ErrUndelivered]; [preflight.Refused] tells
// whether it was touched. If ctx ends before the destination is ready, the migration is given up.
func Migrate(ctx context.Context, hook *hooks.Hook, root int, o Options) (Result, error) {
	s := &source{hook: hook.Filled(), options: o, begun: time.Now()}
	defer s.close()
	err := s.begin(ctx, root)
	if err == nil {
		err = s.prepare(ctx, root)
	}
	if err == nil {
		err = s.forecast(ctx)
	}
	if err != nil || o.DryRun {
		s.forget()
		return s.result, preflight.AsRefusal(err)
	}
	err = s.perform(ctx, root)
	s.result.Total = time.Since(s.begun)
	return s.result, err
}

// begin finds the destination. Nothing is touched.
func (s *source) begin(ctx context.Context, root int) error {
	if err := s.options.fill(); err != nil {
		return err
	}
	findings, err := preflight.ProcessFindings(root)
	if err == nil {
		err = findings.Err()
	}
	if err != nil {
		return err
	}
	if s.identity, err = wire.NewIdentity(); err != nil {
		return err
	}
	random := make([]byte, 8)
	rand.Read(random)
	s.result.ID, s.result.Host = hex.EncodeToString(random), s.options.Host
	status, err := proc.ReadStatus(root)
	if err != nil {
		return err
	}
	if _, err := journal.MakeSessionsDir(s.hook.Config.RunDir); err != nil {
		return err
	}
	s.record = &Record{ID: s.result.ID, Host: s.options.Host, RSH: s.options.RSH, Remote: s.options.Remote, Stage: s.options.Stage, RootPID: root, Name: status.Name, Begun: time.Now().UTC()}
	if err := s.phase("connect", func() error { return s.connect(ctx) }); err != nil {
		return err
	}
	return reach(ctx, "migrate.connected")
}

func (s *source) connect(ctx context.Context) (err error) {
	s.remote, err = connect(ctx, s.record.RSH, s.record.Host, s.record.Remote, s.record.ID, s.identity.Fingerprint(), s.options.receiveArgs()...)
	return err
}

// prepare has both hosts judge whether the job can move.
func (s *source) prepare(ctx context.Context, root int) error {
	return s.phase("prepare", func() (err error) {
		if s.job, err = prepare.Describe(ctx, s.hook, root, s.options.Criu); err != nil {
			return err
		}
		s.job.Map = s.hook.Config.MapFor(s.options.Host)
		if err := s.remote.Send(sayPrepare, prepareMessage{s.job, s.options.TCP, s.options.Copy}); err != nil {
			return err
		}
		here, err := prepare.JudgeSource(ctx, s.hook, s.job, prepare.Room{Dir: s.options.Stage, Criu: s.options.Criu, TCP: s.options.TCP})
		if err != nil {
			return err
		}
		there := new(prepare.Judgement)
		if err := s.remote.expect(ctx, sayJudged, there); err != nil {
			return err
		}
		if err := there.Validate(s.job); err != nil {
			return err
		}
		s.result.Report = &prepare.Report{Source: here, Destination: there}
		return errors.Join(s.result.Report.Err(), reach(ctx, "migrate.judged"))
	})
}

// phase does a part of the migration and notes how long it took.
func (s *source) phase(name string, do func() error) error {
	s.tell(Progress{Phase: name})
	begin := time.Now()
	err := do()
	s.result.Phases = append(s.result.Phases, Phase{Name: name, Begin: begin.Sub(s.begun), Took: time.Since(begin), Running: s.locked.IsZero()})
	return err
}

func (s *source) tell(p Progress) {
	if s.options.Progress != nil {
		s.options.Progress(p)
	}
}

// forget removes what a migration that has touched nothing has left.
func (s *source) forget() {
	if s.remote != nil { // the destination holds nothing either
		s.remote.Close()
	}
}

func (s *source) close() {
	if s.remote != nil {
		s.remote.Close()
		<-s.remote.ended
	}
	if s.stage != nil {
		if err := s.stage.settle(s.hook.Config.RunDir); err != nil {
			s.hook.Log.Warn("the directory of the image could not be removed", "directory", s.stage.dir, "error", err)
		}
	}
	if s.record != nil && s.record.lock != nil {
		s.record.letGo()
	}
}

// perform moves the job.
func (s *source) perform(ctx context.Context, root int) error {
	id, err := proc.IdentOf(os.Getpid())
	if err != nil {
		return preflight.AsRefusal(err)
	}
	if err := s.record.create(s.hook.Config.RunDir); err != nil {
		return preflight.AsRefusal(err)
	}
	if s.stage, err = newStage(s.hook.Config.RunDir, s.options.Stage, s.record.ID, "source"); err != nil {
		return errors.Join(preflight.AsRefusal(err), s.record.remove())
	}
	hold := &journal.Hold{ID: s.record.ID, Peer: s.options.Host, Holder: id, IfAbandoned: journal.DecisionGo}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	s.limit = &pauseLimit{most: s.options.MaxPause, giveUp: giveUp}
	ready, err := s.move(ctx, root, hold)
	s.limit.end()
	if err != nil {
		return s.giveUp(err)
	}
	if err := s.on(ready); err != nil {
		if state, stateErr := sourceState(s.hook, s.record.ID); stateErr == nil && state == commit.Undecided {
			return s.giveUp(err) // the decision could not be written down
		}
		return err
	}
	s.result.Pause = time.Since(s.locked)
	return nil
}

// move brings a complete copy of the job to the destination, which holds it.
func (s *source) move(ctx context.Context, root int, hold *journal.Hold) (commit.Event, error) {
	last := 1
	if s.options.Precopy {
		if err := s.ahead(ctx, root); err != nil {
			return "", err
		}
		last = 2
	}
	way, err := s.open(ctx, round{Number: last})
	if err != nil {
		return "", preflight.AsRefusal(err)
	}
	defer way.close()
	if err := reach(ctx, "migrate.opened"); err != nil {
		return "", err
	}
	err = s.whileConnected(ctx, func(ctx context.Context) error { return s.dump(ctx, root, hold, s.stage.round(last)) })
	if err != nil {
		return "", err
	}
	if err := reach(ctx, "migrate.dumped"); err != nil {
		return "", err
	}
	d := &delta{unshared: true}
	if last > 1 {
		err := s.phase("compare", func() (err error) {
			d, err = newDelta(ctx, s.stage.round(1), s.stage.round(last), s.stage.round(last)+"-delta")
			return err
		})
		if err != nil {
			return "", err
		}
	}
	if err := s.phase("send", func() error { return way.sendImage(ctx, s.stage.round(last), d) }); err != nil {
		return "", err
	}
	if err := reach(ctx, "migrate.sent"); err != nil {
		return "", err
	}
	s.result.Bytes = way.totals.Bytes
	s.result.Link += way.totals.Sent
	err = s.phase("restore", func() error {
		asked := restoreMessage{TCP: s.options.TCP}
		for _, name := range d.links {
			asked.Links = append(asked.Links, link{Round: 1, Name: name})
		}
		if err := s.remote.Send(sayRestore, asked); err != nil {
			return err
		}
		if err := reach(ctx, "migrate.asked"); err != nil {
			return err
		}
		return s.remote.expect(ctx, sayReady, nil)
	})
	if err != nil {
		return "", err
	}
	return commit.Ready, reach(ctx, "migrate.ready")
}

// ahead sends the job as it is now, while it runs on.
func (s *source) ahead(ctx context.Context, root int) error {
	way, err := s.open(ctx, round{Number: 1})
	if err != nil {
		return preflight.AsRefusal(err)
	}
	defer way.close()
	err = s.whileConnected(ctx, func(ctx context.Context) error { return s.dumpRunning(ctx, root, s.stage.round(1)) })
	if err != nil {
		return err
	}
	err = s.phase("ahead", func() error { return way.sendImage(ctx, s.stage.round(1), &delta{unshared: true}) })
	s.result.Ahead = way.totals.Bytes
	s.result.Link += way.totals.Sent
	return err
}

// whileConnected does something that is given up when the destination is lost.
func (s *source) whileConnected(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-s.remote.Done():
			cancel(s.remote.lastWords(context.WithoutCancel(ctx)))
		case <-over:
		}
	}()
	err := do(ctx)
	close(over)
	<-ended
	return err
}

// giveUp lets the job go on here, and says why it did not move.
func (s *source) giveUp(cause error) error {
	refused := preflight.Refused(cause) && s.locked.IsZero() && s.result.Before == 0
	err := s.on(commit.Failed)
	switch {
	case err == nil && refused:
		return preflight.AsRefusal(cause)
	case err == nil:
		return preflight.AsFailure(fmt.Errorf("%w; the job goes on here", cause))
	}
	return errors.Join(preflight.AsFailure(cause), err)
}
