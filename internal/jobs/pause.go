package jobs

import (
	"context"
	"fmt"

	"cucriu/internal/jobs/inside"
)

// A paused job stands still, and its GPU memory is in host memory. That it is paused is written in
// its sandbox, so that the next supervisor knows it as well.

// pause lets the job stand still, and reports whether it does.
func (s *core) pause(ctx context.Context) (bool, error) {
	if _, err := s.ask(ctx, inside.Request{Op: inside.Pause, Root: s.sandbox.Root}); err != nil {
		paused, _ := inside.IsPaused(s.sandbox.RunDir) // it was cut off, and cucriu jobs resume brings the job back
		return paused, err
	}
	s.tell(Event{Event: EventPaused, Message: s.record.Name + " is paused: it stands still, and its GPU memory is in host memory"})
	return true, nil
}

// unpause lets a paused job go on.
func (s *core) unpause(ctx context.Context) error {
	if _, err := s.ask(ctx, inside.Request{Op: inside.Unpause, Root: s.sandbox.Root}); err != nil {
		return fmt.Errorf("%s does not go on, and is still paused: %w", s.record.Name, err)
	}
	s.tell(Event{Event: EventUnpaused, Message: s.record.Name + " goes on after its pause"})
	return nil
}
