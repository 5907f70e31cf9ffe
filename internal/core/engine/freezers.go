package engine

import (
	"context"
	"errors"
	"os"

	"cucriu/internal/kit/proc"
)

// thaw thaws whatever keeps a process frozen.
func thaw(ctx context.Context, pid int) error {
	frozen, err := proc.FrozenBy(pid)
	if err != nil && !errors.Is(err, proc.ErrGone) {
		return err
	}
	for _, freezer := range frozen {
		if err := freezer.Thaw(ctx); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func thawAll(ctx context.Context, targets []*Target) error {
	for _, t := range targets {
		if err := thaw(ctx, t.PID); err != nil {
			return err
		}
	}
	return nil
}

// FreezeAll freezes the freezers that still exist.
func FreezeAll(ctx context.Context, freezers []proc.Freezer) error {
	for _, freezer := range freezers {
		if err := freezer.Freeze(ctx); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
