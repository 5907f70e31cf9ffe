package jobs

import (
	"context"
	"errors"
	"fmt"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
)

// cucriu suspend refuses the processes of a long job, which its supervisor pauses. A program that uses hooks/checkpoint
// may suspend them all the same, as an earlier version did. Their session is one of the host's, and in the way of every
// checkpoint.

// suspended returns the sessions in which processes of the job are suspended.
func (s *core) suspended() ([]checkpoint.Suspension, error) {
	if s.sandbox == nil {
		return nil, nil
	}
	return checkpoint.SuspendedBelow(s.hook.Config.RunDir, s.sandbox.Init().PID)
}

// refuseSuspended refuses what cannot be done while processes of the job are suspended, and says how they are resumed.
func (s *core) refuseSuspended() error {
	sessions, err := s.suspended()
	if err == nil && len(sessions) > 0 {
		err = sessions[0].Conflict
	}
	return preflight.AsRefusal(err)
}

// resumeSuspended resumes the processes of the job that are suspended, and those that were suspended with them: else
// the job would leave without a last checkpoint.
func (s *core) resumeSuspended(ctx context.Context) error {
	sessions, err := s.suspended()
	if err != nil || len(sessions) == 0 {
		return err
	}
	var pids []int
	for _, session := range sessions {
		pids = append(pids, session.Processes[0].PID)
	}
	_, err = checkpoint.Resume(ctx, s.hook, pids, false)
	if errors.Is(err, hooks.ErrEnded) { // one was killed meanwhile, and the job is told when the others go on
		if left, leftErr := s.suspended(); leftErr == nil && len(left) == 0 {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("%s is suspended, and could not be resumed: %w", s.name, err)
	}
	s.tell(Event{Event: EventUnpaused, Message: s.name + " was suspended, and was resumed for its last checkpoint"})
	return nil
}
