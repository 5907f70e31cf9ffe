package watch

import (
	"context"
	"errors"
	"slices"
	"time"

	"cucriu/internal/engine"
	"cucriu/internal/journal"
	"cucriu/internal/session"
)

// A paused container is one whose control group the engine has frozen. The driver can do nothing with
// frozen processes, so the hook thaws them, and freezes them again while the engine still waits for
// criu. Once criu has ended, the engine may resume the container at any moment, and only while it is
// frozen. So the watcher never thaws it: it waits for the engine to do so, and then brings the GPU
// state back.

// awaitResume waits until the engine has resumed a paused container or ended it. It puts the freeze
// back if the hook was cut off before it could.
func awaitResume(ctx context.Context, s *session.Session) error {
	if err := session.StopMembers(&s.Record); err != nil {
		return err
	}
	if !s.HandedOver() {
		freezing, cancel := context.WithTimeout(ctx, s.Env.Config.Lock.Timeout)
		defer cancel()
		if err := engine.FreezeAll(freezing, s.Paused); err != nil {
			return err
		}
	}
	for pause := time.Millisecond; slices.ContainsFunc(s.Members, journal.Member.Alive) && ctx.Err() == nil; pause = min(2*pause, 50*time.Millisecond) {
		if still, err := engine.PausedStill(&s.Record); err != nil || len(still) == 0 {
			if err != nil {
				return err
			}
			break
		}
		if s.Message == "" {
			s.Message = "the container is paused as it was before the dump; its GPU state comes back when it is resumed"
			s.Env.Log.Info(s.Message, "session", s.Name())
			if err := s.Save(); err != nil {
				return err
			}
		}
		time.Sleep(pause) // a v1 freezer has no event to wait for
	}
	s.Paused = nil // whatever freezes it from now on is not ours to put back
	return errors.Join(s.Save(), ctx.Err())
}
