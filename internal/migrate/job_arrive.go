package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"cucriu/hooks"
	"cucriu/internal/failpoint"
	"cucriu/internal/jobs"
	"cucriu/internal/migrate/commit"
)

// arrival is where the destination of a long job stands in the commit protocol.
type arrival struct {
	hook *hooks.Hook
	dir  string
	id   string
}

// state returns the state, and whether the record in the job's directory is about this migration.
func (a arrival) state() (state commit.DestinationState, m jobs.Move, known bool, err error) {
	m, err = jobs.ReadMove(a.dir)
	if err != nil || m.ID != a.id {
		return commit.Receiving, m, false, err
	}
	switch m.State {
	case jobs.MoveArriving:
		return commit.Receiving, m, true, nil
	case jobs.MovePromised:
		return commit.Promised, m, true, nil
	case jobs.MoveArrived:
		return commit.Go, m, true, nil
	case jobs.MoveLeft: // given back
		return commit.Go, m, m.Returned != "", nil
	}
	return commit.Receiving, m, false, nil
}

// decide answers an event: the next state is on disk when it returns, and the directory of a copy
// that is dropped is as it was.
func (a arrival) decide(e commit.Event) (do []commit.Action, m jobs.Move, err error) {
	state, m, _, err := a.state()
	if err != nil {
		return nil, m, err
	}
	next, do, err := commit.Destination{State: state}.On(e)
	if err != nil || next.State == state {
		return do, m, err
	}
	switch next.State {
	case commit.Promised:
		m.State = jobs.MovePromised
		if m.Events, err = jobs.EventsSize(a.dir); err == nil {
			err = m.Write(a.dir)
		}
	case commit.Go:
		m.State, m.Before = jobs.MoveArrived, nil
		err = m.Write(a.dir)
	case commit.Dropped:
		err = a.drop(m)
	}
	return do, m, err
}

// drop removes what has arrived. A job that had left this host before has left it still.
func (a arrival) drop(m jobs.Move) error {
	err := os.RemoveAll(filepath.Join(a.dir, arrivingName))
	if m.Before != nil {
		return errors.Join(err, m.Before.Write(a.dir), jobs.NoteLocal(a.hook.Config.RunDir, a.dir, jobs.StatePreempted))
	}
	// The record goes last: as long as it is there, nobody takes the rest for a job.
	for _, name := range jobs.OwnFiles() {
		err = errors.Join(err, os.RemoveAll(filepath.Join(a.dir, name)))
	}
	if err == nil && m.Made {
		err = os.Remove(a.dir)
	}
	return err
}

// on answers an event, and tells the source.
func (d *jobDestination) on(e commit.Event) error {
	ctx := context.Background()
	if d.lock == nil { // nothing of this migration is here
		if e == commit.Commit || e == commit.Abort {
			return d.Send(sayUnknown, nil)
		}
		return nil
	}
	a := arrival{d.hook, d.job.Dir, d.peer.ID}
	_, m, known, err := a.state()
	if err != nil {
		return err
	}
	if !known {
		if e == commit.Commit || e == commit.Abort {
			return d.Send(sayUnknown, nil)
		}
		return nil
	}
	do, m, err := a.decide(e)
	if err != nil {
		return err
	}
	for _, action := range do {
		switch action {
		case commit.SayReady:
			if err := d.store.Close(); err != nil { // the supervisor opens it
				return err
			}
			if err := failpoint.Hit(ctx, "job.promised", 0); err != nil {
				return err
			}
			err = d.Send(sayReady, nil)
		case commit.LetRun:
			if err := failpoint.Hit(ctx, "job.arrived", 0); err != nil {
				return err
			}
			if m, err = a.letRun(ctx, m); err == nil && m.Returned != "" {
				if e == commit.ControlLost {
					return nil // the source asks again
				}
				return d.Send(sayReturned, jobReturned{m.Returned})
			}
		case commit.SayRunning:
			local, _ := jobs.Find(d.hook.Config.RunDir, d.job.Dir)
			err = d.Send(sayRunning, running{PID: local.PID})
		case commit.SayEnded:
			err = d.Send(sayEnded, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// letRun brings the job to run, unless it runs or has run here. If it cannot be resumed, it is
// given back: never run here from then on.
func (a arrival) letRun(ctx context.Context, m jobs.Move) (jobs.Move, error) {
	if m.Returned != "" {
		return m, nil
	}
	why := startJob(ctx, a.hook, a.dir, m)
	if why == nil {
		return m, nil
	}
	if errors.Is(why, errUnclear) {
		return m, fmt.Errorf("%w: %w", hooks.ErrNotBack, why)
	}
	return a.giveBack(ctx, m, why)
}
