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

// A paused container is one whose control group the engine has frozen. Some engines pause
// every container before they checkpoint it. The driver can do nothing with frozen
// processes, so the hook thaws them. It freezes them again while the engine still waits for
// criu: before criu takes over, or when the dump fails in the hook itself.
//
// Once criu has ended, the engine may resume the container at any moment. It can do so only
// while the container is frozen: runc refuses to resume one that is not paused. So the
// watcher never thaws it. It waits for the engine to do so, and then brings the GPU state
// back.

// awaitResume leaves a paused container to the engine. It puts the freeze back if the hook
// was cut off before it could, and waits until the engine has resumed the container or
// ended it.
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
