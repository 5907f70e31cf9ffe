package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestAStallCountsNoTimeBetweenCopies: one process's copy may be over long before the next one's
// checkpoint.
func TestAStallCountsNoTimeBetweenCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stall := NewStall(t.Context(), time.Second)
		defer stall.End(context.Canceled)
		stall.Begin()
		stall.Done()
		time.Sleep(time.Hour)
		stall.Begin()
		time.Sleep(900 * time.Millisecond)
		stall.Moved()
		time.Sleep(900 * time.Millisecond)
		if ctx.Err() != nil {
			t.Fatal("it has stalled while data moved, or while no copy was under way:", context.Cause(ctx))
		}
		time.Sleep(time.Second)
		if ctx.Err() == nil {
			t.Error("a copy that hangs is not given up")
		}
	})
}
