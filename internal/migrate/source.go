package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/criuimage"
	"cucriu/internal/journal"
	"cucriu/internal/migrate/commit"
	"cucriu/internal/migrate/prepare"
	"cucriu/internal/proc"
	"cucriu/internal/timeline"
)

// source is the source's side of one migration.
type source struct {
	departure
	record *Record
	stage  *stage
	job    *prepare.Job
	// addressMoved says that the command that moves the address of the job has begun.
	addressMoved bool
	// asked says that the destination was asked to restore a job that has sockets with names.
	asked bool
	limit *pauseLimit
	// begunClock is begun as time since boot.
	begunClock time.Duration
	clocks     clocks
}

// answerPatience is how long a destination may take to do what it was told.
const answerPatience = 10 * time.Minute

func newSource(hook *hooks.Hook, o Options) *source {
	return &source{
		begunClock: timeline.SinceBoot(),
		departure: departure{
			hook: hook, options: o, begun: time.Now(),
			manner: manner{
				settle:   func(decision string) (string, any) { return saySettle, settleMessage{decision} },
				patience: answerPatience,
			},
		},
	}
}

// Migrate moves the job whose root process is given to another host. After an error the job goes
// on here, unless the error wraps [hooks.ErrNotBack] or [ErrUndelivered]; [preflight.Refused] tells
// whether it was touched. If ctx ends before the destination is ready, the migration is given up.
func Migrate(ctx context.Context, hook *hooks.Hook, root int, o Options) (Result, error) {
	s := newSource(hook.Filled(), o)
	defer s.close()
	err := s.begin(ctx, root)
	if err == nil {
		err = s.prepare(ctx, root)
	}
	if err == nil {
		err = s.forecast(ctx)
	}
	if err != nil || o.DryRun {
		return s.result, preflight.AsRefusal(err)
	}
	err = s.perform(ctx, root)
	s.result.Total, s.result.Timeline = time.Since(s.begun), s.timeline(s.there)
	return s.result, err
}

// begin finds the destination. Nothing is touched.
func (s *source) begin(ctx context.Context, root int) error {
	if err := s.options.fill(); err != nil {
		return err
	}
	err := s.checkRoot(root)
	if err != nil {
		return err
	}
	s.result.ID, s.result.Host = newID(), s.options.Host
	status, err := proc.ReadStatus(root)
	if err != nil {
		return err
	}
	if _, err := journal.MakeSessionsDir(s.hook.Config.RunDir); err != nil {
		return err
	}
	s.record = &Record{ID: s.result.ID, Host: s.options.Host, RSH: s.options.RSH, Remote: s.options.Remote, Stage: s.options.Stage, RootPID: root, Name: status.Name, Begun: time.Now().UTC(), MoveAddress: s.options.MoveAddress}
	if err := s.phase("connect", func() error { return s.connect(ctx) }); err != nil {
		return err
	}
	return reach(ctx, "migrate.connected")
}

// prepare has both hosts judge whether the job can move.
func (s *source) prepare(ctx context.Context, root int) error {
	return s.phase("prepare", func() (err error) {
		if s.job, err = prepare.Describe(ctx, s.hook, root, s.options.Criu); err != nil {
			return err
		}
		s.job.Map = s.hook.Config.MapFor(s.options.Host)
		ahead := s.options.Precopy == PrecopyAlways
		asked := prepareMessage{Job: s.job, TCP: s.options.TCP, Copy: s.options.Copy, Ahead: ahead, Force: s.hook.Force, HostMark: hostMark(s.hook.Config.RunDir)}
		if err := s.remote.Send(sayPrepare, asked); err != nil {
			return err
		}
		here, err := prepare.JudgeSource(ctx, s.hook, s.job, prepare.Room{Dir: s.options.Stage, Criu: s.options.Criu, TCP: s.options.TCP, Ahead: ahead})
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
		if err := s.result.Report.Err(); err != nil {
			return err
		}
		return errors.Join(s.foreseeFiles(ctx), reach(ctx, "migrate.judged"))
	})
}

func (s *source) close() {
	s.departure.close()
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
	hold := &journal.Hold{ID: s.record.ID, Peer: s.options.Host, Holder: id, IfAbandoned: journal.DecisionGo, KeepsConnections: s.options.TCP == prepare.TCPKeep}
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
	s.result.Pause = time.Since(s.halted)
	return nil
}

// move brings a complete copy of the job to the destination, which holds it.
func (s *source) move(ctx context.Context, root int, hold *journal.Hold) (commit.Event, error) {
	last := 1
	if s.result.Precopied {
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
	written := way.files.wrote
	if last > 1 {
		written = nil // only what has changed is sent
	}
	err = s.remote.whileConnected(ctx, 0, func(ctx context.Context) error {
		return way.whileSending(ctx, func(ctx context.Context) error { return s.dump(ctx, root, hold, s.stage.round(last), written) })
	})
	if err != nil {
		return "", err
	}
	if err := reach(ctx, "migrate.dumped"); err != nil {
		return "", err
	}
	s.addressMoved = true
	if err := s.moveAddress(ctx, addressThere); err != nil {
		return "", err
	}
	d := new(delta)
	if last > 1 {
		err := s.phase("compare", func() (err error) {
			d, err = s.compare(ctx, last)
			return err
		})
		if err == nil {
			err = reach(ctx, "migrate.compared")
		}
		if err != nil {
			return "", err
		}
	}
	if err := way.sendImage(ctx, "send", s.stage.round(last), d); err != nil {
		return "", err
	}
	if err := reach(ctx, "migrate.sent"); err != nil {
		return "", err
	}
	s.result.Bytes = way.totals.Bytes
	s.result.Link += way.totals.Sent
	err = s.phase("restore", func() error {
		paths, err := criuimage.BoundSockets(s.stage.round(last))
		if err != nil {
			return err
		}
		asked := restoreMessage{TCP: s.options.TCP}
		if asked.Sockets, err = s.hook.KeepSockets(ctx, s.record.ID, paths); err != nil {
			return err
		}
		for _, name := range d.links {
			asked.Links = append(asked.Links, link{Round: 1, Name: name})
		}
		for _, name := range d.parents {
			asked.Links = append(asked.Links, link{Round: 1, Name: name, Parent: true})
		}
		s.asked = len(asked.Sockets) > 0
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

// compare finds out what of a round the destination does not have from the first one.
func (s *source) compare(ctx context.Context, last int) (*delta, error) {
	d := &delta{dir: s.stage.round(last) + "-delta"}
	err := s.remote.whileConnected(ctx, 0, func(ctx context.Context) error {
		err := d.compare(ctx, s.stage.round(1), s.stage.round(last), s.result.Report.Destination.LargestArea)
		return cmp.Or(context.Cause(ctx), err)
	})
	switch {
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		s.hook.Log.Warn("there is no room to write down what has changed, so all of the image is sent", "error", err)
		return new(delta), os.RemoveAll(d.dir)
	}
	return d, err
}

// open opens the way for the files of a round. The job runs on meanwhile.
func (s *source) open(ctx context.Context, r round) (w *way, err error) {
	err = s.phase("open the way for data", func() error {
		w, err = s.departure.open(ctx, sayRound, r)
		return err
	})
	return w, err
}

// ahead sends the job as it is now, while it runs on.
func (s *source) ahead(ctx context.Context, root int) error {
	way, err := s.open(ctx, round{Number: 1})
	if err != nil {
		return preflight.AsRefusal(err)
	}
	defer way.close()
	err = s.remote.whileConnected(ctx, 0, func(ctx context.Context) error { return s.dumpRunning(ctx, root, s.stage.round(1)) })
	if err != nil {
		return err
	}
	err = way.sendImage(ctx, "ahead", s.stage.round(1), new(delta))
	s.result.Ahead = way.totals.Bytes
	s.result.Link += way.totals.Sent
	return err
}

// giveUp lets the job go on here, and says why it did not move.
func (s *source) giveUp(cause error) error {
	refused := preflight.Refused(cause) && s.halted.IsZero() && s.result.Before == 0
	if s.addressMoved {
		s.addressBackIfStaying()
	}
	err := s.on(commit.Failed)
	switch {
	case err == nil && refused:
		return preflight.AsRefusal(cause)
	case err == nil:
		return preflight.AsFailure(fmt.Errorf("%w; the job goes on here", cause))
	}
	return errors.Join(preflight.AsFailure(cause), err)
}
