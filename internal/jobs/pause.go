package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"cucriu/hooks/preflight"
)

// A paused job stands still, and its GPU memory is in host memory. That it is paused is written in
// its sandbox, so that the next supervisor knows it as well.

// pause lets the job stand still.
func (s *supervisor) pause(ctx context.Context) error {
	if _, err := s.ask(ctx, request{Op: opPause, Root: s.sandbox.Root()}); err != nil {
		if _, statErr := os.Stat(filepath.Join(s.sandbox.RunDir(), pausedName)); statErr == nil {
			s.paused.Store(true) // it was cut off, and cucriu jobs resume brings the job back
		}
		return fmt.Errorf("%s is not paused: %w", s.record.Name, err)
	}
	s.paused.Store(true)
	s.tell(Event{Event: EventPaused, Message: s.record.Name + " is paused: it stands still, and its GPU memory is in host memory"})
	return nil
}

// unpause lets a paused job go on.
func (s *supervisor) unpause(ctx context.Context) error {
	if !s.paused.Load() {
		return preflight.AsRefusal(fmt.Errorf("%s is not paused", s.record.Name))
	}
	if _, err := s.ask(ctx, request{Op: opUnpause, Root: s.sandbox.Root()}); err != nil {
		return fmt.Errorf("%s does not go on, and is still paused: %w", s.record.Name, err)
	}
	s.paused.Store(false)
	s.tell(Event{Event: EventUnpaused, Message: s.record.Name + " goes on after its pause"})
	return nil
}

// attachPaused finds out whether a job that runs without a supervisor is paused. A pause that was
// cut off is made whole, or undone.
func (s *supervisor) attachPaused(ctx context.Context) error {
	_, err := os.Stat(filepath.Join(s.sandbox.RunDir(), pausedName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	s.paused.Store(true)
	if _, err := s.ask(ctx, request{Op: opPause, Root: s.sandbox.Root()}); err != nil {
		defer s.noteRunning(time.Time{})
		s.say(fmt.Sprintf("the pause of %s was cut off and is undone: %v", s.record.Name, err))
		if err := s.unpause(ctx); err != nil {
			s.tell(Event{Event: EventFailed, Message: err.Error()})
		}
		return nil
	}
	s.noteRunning(time.Time{})
	s.say(s.record.Name + " is paused: cucriu jobs resume lets it go on")
	return nil
}
