package jobs

import (
	"context"
	"fmt"
	"time"

	"cucriu/hooks/preflight"
)

// work is what the supervisor does beside its loop, one at a time.
type work struct {
	err error
	// reschedule says that the time of the next checkpoint is counted anew.
	reschedule bool
	// left says that the job was ended, after its last checkpoint.
	left bool
}

// serve does what somebody has asked for.
func (s *supervisor) serve(ctx context.Context, a *asked) work {
	switch a.Op {
	case AskCheckpoint:
		if s.paused.Load() {
			a.answer(Answer{}, preflight.AsRefusal(fmt.Errorf("%s is paused, and makes no checkpoints: cucriu jobs resume lets it go on", s.record.Name)))
			return work{}
		}
		a.say("making a checkpoint")
		return s.serveCheckpoint(ctx, a)
	case AskPause:
		return s.servePause(ctx, a)
	case AskResume:
		if s.paused.Load() {
			a.say("moving GPU memory back to the GPUs")
		}
		err := s.unpause(ctx)
		s.noteRunning(time.Time{})
		a.answer(Answer{Message: s.record.Name + " goes on"}, err)
		return work{reschedule: err == nil}
	case AskStop:
		return s.serveStop(ctx, a)
	case AskMove:
		return s.serveMove(ctx, a)
	case AskPrune:
		removed, err := s.store.Prune(ctx, a.Prune)
		answer := Answer{}
		for _, c := range removed {
			answer.Removed = append(answer.Removed, c.Name)
		}
		a.answer(answer, err)
	default:
		a.answer(Answer{}, preflight.AsRefusal(fmt.Errorf("the supervisor of %s does not know %q: it is of another version than this cucriu", s.record.Name, a.Op)))
	}
	return work{}
}

func (s *supervisor) serveCheckpoint(ctx context.Context, a *asked) work {
	c, err := s.checkpoint(ctx, "request")
	var answer Answer
	if c.Name != "" {
		answer = Answer{Message: sayCheckpoint(c), Checkpoint: c.Name}
	}
	a.answer(answer, err)
	return work{err: err, reschedule: true}
}

// servePause pauses the job, after a checkpoint. A paused job is in the memory of this host only,
// so that a reboot would lose what it has done since the last one. And the dump takes from forked
// children what they have inherited of the driver: after the pause nobody could tell any more of
// whom, and no checkpoint could be made.
func (s *supervisor) servePause(ctx context.Context, a *asked) work {
	if s.paused.Load() {
		a.answer(Answer{}, preflight.AsRefusal(fmt.Errorf("%s is paused already: cucriu jobs resume lets it go on", s.record.Name)))
		return work{}
	}
	a.say("making a checkpoint")
	c, err := s.checkpoint(ctx, "pause")
	if err != nil {
		a.answer(Answer{}, fmt.Errorf("%s is not paused: %w", s.record.Name, err))
		return work{err: err, reschedule: true}
	}
	a.say("moving GPU memory into host memory")
	err = s.pause(ctx)
	s.noteRunning(time.Time{}) // before somebody looks
	a.answer(Answer{Message: s.record.Name + " is paused", Checkpoint: c.Name}, err)
	return work{reschedule: true}
}

// serveStop ends the job with a last checkpoint. Without one it goes on: whoever has asked is
// there, and can decide. The answer waits until the store is given back.
func (s *supervisor) serveStop(ctx context.Context, a *asked) work {
	refuse := func(err error) work {
		s.noteRunning(time.Time{})
		a.answer(Answer{}, fmt.Errorf("%s is not stopped, and goes on: %w", s.record.Name, err))
		return work{err: err, reschedule: true}
	}
	if s.paused.Load() {
		if err := s.unpause(ctx); err != nil {
			return refuse(err)
		}
	}
	a.say("making a last checkpoint")
	s.board.is(StateCheckpoint)
	c, err := s.makeCheckpoint(ctx, "stop", true)
	if err != nil {
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("asked to stop, but no last checkpoint: %v", err)})
		if s.root == nil || s.root.Exiting() { // its image is whole, and is not yet a checkpoint
			a.answer(Answer{}, err)
			return work{left: true}
		}
		return refuse(err)
	}
	s.tellCheckpoint(c)
	s.tell(Event{Event: EventPreempted, Message: s.record.Name + " is stopped, as was asked for"})
	s.control.last = func() {
		a.answer(Answer{Message: sayCheckpoint(c), Checkpoint: c.Name}, nil)
	}
	return work{left: true}
}
