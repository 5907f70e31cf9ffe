package hooks

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
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

// toPauseAgain returns the freezers that a bring-up must freeze when it is done.
func (s *session) toPauseAgain() ([]proc.Freezer, error) {
	if !s.HandedOver() {
		return s.Paused, nil
	}
	return s.pausedStill()
}

// pausedStill returns the freezers that the engine had frozen and that are frozen now.
func (s *session) pausedStill() ([]proc.Freezer, error) {
	var frozen []proc.Freezer
	for _, freezer := range s.Paused {
		isFrozen, err := freezer.Frozen()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if isFrozen {
			frozen = append(frozen, freezer)
		}
	}
	return frozen, nil
}

// freezeAll freezes the freezers that still exist.
func freezeAll(ctx context.Context, freezers []proc.Freezer) error {
	for _, freezer := range freezers {
		if err := freezer.Freeze(ctx); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// onNetworkUnlock stops the CUDA processes of a dump before criu lets go of them. Through a v1 freezer
// criu got them without a stop, and they would run checkpointed as soon as somebody thawed
// them. criu traces them now, so the signal waits.
func (h *Hook) onNetworkUnlock(_ context.Context, criu *criuutil.Criu, _ Stage) error {
	s, err := h.sessionOf(journal.KindDump, criu)
	if err != nil || s == nil {
		return err
	}
	defer s.LetGo()
	return s.stopMembers()
}

// stopMembers sends SIGSTOP to the processes that may be checkpointed.
func (s *session) stopMembers() error {
	if !s.MayBeCheckpointed() {
		return nil
	}
	return signalKnown(unix.SIGSTOP, journal.IdentsOf(s.Members)...)
}

// awaitResume leaves a paused container to the engine. It puts the freeze back if the hook
// was cut off before it could, and waits until the engine has resumed the container or
// ended it.
func (h *Hook) awaitResume(ctx context.Context, s *session) error {
	if err := s.stopMembers(); err != nil {
		return err
	}
	if !s.HandedOver() {
		freezing, cancel := context.WithTimeout(ctx, h.Config.Lock.Timeout)
		defer cancel()
		if err := freezeAll(freezing, s.Paused); err != nil {
			return err
		}
	}
	for pause := time.Millisecond; slices.ContainsFunc(s.Members, journal.Member.Alive) && ctx.Err() == nil; pause = min(2*pause, 50*time.Millisecond) {
		if still, err := s.pausedStill(); err != nil || len(still) == 0 {
			if err != nil {
				return err
			}
			break
		}
		if s.Message == "" {
			s.Message = "the container is paused as it was before the dump; its GPU state comes back when it is resumed"
			h.Log.Info(s.Message, "session", s.Name())
			if err := s.Save(); err != nil {
				return err
			}
		}
		time.Sleep(pause) // a v1 freezer has no event to wait for
	}
	s.Paused = nil // whatever freezes it from now on is not ours to put back
	return errors.Join(s.Save(), ctx.Err())
}
