package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/durable"
	"cucriu/internal/failpoint"
	"cucriu/internal/jobs/job"
)

// AskMove makes a last checkpoint of the job and ends it, because it is being moved to another
// host. The supervisor waits until it is decided where the job goes on: if here, it resumes it.
const AskMove = "move"

// StateMoving is a job that was ended here while it is being moved.
const StateMoving State = "moving"

// EventMoving and EventMoved tell of a move.
const (
	EventMoving = "moving" // it was ended here, with a checkpoint
	EventMoved  = "moved"  // it goes on elsewhere
)

// flagsName is the file that says with which options a job was run last.
const flagsName = "flags.json"

// noteFlags keeps the options of the supervisor for the one of the host to which the job may move.
func (s *supervisor) noteFlags() {
	if err := durable.WriteJSON(filepath.Join(s.Dir, flagsName), append([]string{}, s.Flags...)); err != nil {
		s.say(fmt.Sprintf("the options are not noted for a host to which the job may move: %v", err))
	}
}

// serveMove ends the job with a last checkpoint. The answer waits until nothing of it is left here.
func (s *supervisor) serveMove(ctx context.Context, a *asked) work {
	refuse := func(err error) work {
		s.noteRunning(time.Time{})
		a.answer(Answer{}, fmt.Errorf("%s does not move, and goes on here: %w", s.record.Name, err))
		return work{err: err, reschedule: true}
	}
	if m, err := ReadMove(s.Dir); err != nil || m.State != MoveLeaving {
		return refuse(errors.Join(errors.New("nobody moves it: cucriu migrate --job does"), err))
	}
	if s.paused.Load() {
		if err := s.unpause(ctx); err != nil {
			return refuse(err)
		}
	}
	a.say("making a last checkpoint")
	s.board.is(StateCheckpoint)
	c, err := s.makeCheckpoint(ctx, "move", true)
	if err != nil {
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("asked to move, but no last checkpoint: %v", err)})
		if s.root != nil && !s.root.Exiting() {
			return refuse(err)
		}
	} else {
		s.tellCheckpoint(c)
	}
	s.moving = func(endErr error) {
		err := errors.Join(err, endErr)
		a.answer(Answer{Message: sayCheckpoint(c), Checkpoint: c.Name}, err)
	}
	return work{left: true}
}

// mayRunHere fails if the job belongs to another host, or may. It reports whether it has left.
func (s *supervisor) mayRunHere() (left bool, err error) {
	m, err := ReadMove(s.Dir)
	if err != nil {
		return false, err
	}
	switch m.State {
	case MoveLeft:
		s.say(m.elsewhere(s.Dir))
		_ = NoteLocal(s.hook.Config.RunDir, s.Dir, StatePreempted) // so that cucriu recover finds it
		return true, nil
	case MoveArriving, MovePromised:
		return false, &ElsewhereError{s.Dir, m}
	}
	return false, nil
}

// awaitMove waits, while the job is being moved, until it is decided where it goes on. It reports
// that the job goes on here, or with which status to end.
func (s *supervisor) awaitMove(ctx context.Context, signals *job.Signals) (here bool, status int, err error) {
	for said := false; ; said = true {
		m, err := s.lookAtMove(ctx)
		if err != nil {
			return false, 0, err
		}
		switch {
		case m.State == MoveLeft:
			s.tell(Event{Event: EventMoved, Message: fmt.Sprintf("%s goes on at %s", s.record.Name, m.Peer)})
			s.board.is(StatePreempted)
			return false, s.MovedStatus, nil
		case m.State != MoveLeaving:
			return true, 0, nil
		case !said:
			s.board.is(StateMoving)
			s.tell(Event{Event: EventMoving, Message: fmt.Sprintf("%s is being moved to %s: waiting", s.record.Name, m.Peer)})
		}
		select {
		case <-ctx.Done():
			return false, 0, context.Cause(ctx)
		case <-time.After(moveLook):
		case a := <-s.control.requests:
			a.answer(Answer{}, preflight.AsRefusal(fmt.Errorf("%s is being moved to %s", s.record.Name, m.Peer)))
		case got := <-signals.Got():
			if slices.Contains(append(s.Preempt, unix.SIGINT), got.(unix.Signal)) {
				s.tell(Event{Event: EventPreempted, Message: fmt.Sprintf("got %s while %s is being moved; if it does not move, the same command goes on from its last checkpoint", unix.SignalName(got.(unix.Signal)), s.record.Name)})
				return false, s.RequeueStatus, nil
			}
		}
	}
}

// lookAtMove reads the record of the move. While the program that moves the job lives, a job that
// has left may yet be given back. If it was killed before it has decided, the job goes on here.
func (s *supervisor) lookAtMove(ctx context.Context) (Move, error) {
	lock, err := TryLockMove(s.Dir)
	moves := errors.Is(err, ErrMoving)
	if err != nil && !moves {
		return Move{}, err
	}
	if !moves {
		defer lock.Free()
	}
	m, err := ReadMove(s.Dir)
	switch {
	case err != nil:
		return m, err
	case moves && m.State == MoveLeft:
		m.State = MoveLeaving
	case !moves && m.State == MoveLeaving:
		m.State = MoveStays
		if err := failpoint.Hit(ctx, "jobs.stays", 0); err != nil {
			return m, err
		}
		if err := m.Write(s.Dir); err != nil {
			return m, err
		}
		s.say(fmt.Sprintf("the move to %s was cut off: %s goes on here; cucriu recover tells that host", m.Peer, s.record.Name))
	}
	return m, nil
}

// Flags returns the options with which a job was run last, without the directory.
func Flags(dir string) (flags []string, err error) {
	data, err := os.ReadFile(filepath.Join(dir, flagsName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &flags)
	}
	if err != nil {
		return nil, fmt.Errorf("options of the job: %w", err)
	}
	return flags, nil
}
