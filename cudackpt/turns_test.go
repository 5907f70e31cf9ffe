package cudackpt

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestGivenUpCallKeepsItsTurnUntilItReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // whose clock waits for the calls
		var turns turns
		returns := make(chan struct{})
		ctx, cancel := context.WithCancel(context.Background())
		started := make(chan struct{})
		go func() {
			<-started
			cancel()
		}()
		err := turns.do(ctx, callCheckpoint, 7, func() error {
			close(started)
			<-returns
			return nil
		})
		given, ok := errors.AsType[*InterruptedError](err)
		if !ok || !given.Started || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "may still complete in the target") {
			t.Fatalf("given up: %#v", err)
		}

		// The next one on this pid does not start; one on another pid does.
		short, cancelShort := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancelShort()
		err = turns.do(short, callUnlock, 7, func() error { t.Error("two calls at once"); return nil })
		waited, ok := errors.AsType[*InterruptedError](err)
		if !ok || waited.Started || waited.InTheWay != callCheckpoint || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("in the way: %#v", err)
		}
		if err := turns.do(context.Background(), callUnlock, 8, func() error { return nil }); err != nil {
			t.Fatal(err)
		}

		next := make(chan error)
		go func() {
			next <- turns.do(context.Background(), callUnlock, 7, func() error { return ResultIllegalState })
		}()
		close(returns)
		if err := <-next; !errors.Is(err, ResultIllegalState) {
			t.Fatalf("after it returned: %v", err)
		}
		if len(turns.busy) != 0 {
			t.Errorf("turns are left over: %v", turns.busy)
		}
	})
}

func TestEndedContextStartsNothing(t *testing.T) {
	var turns turns
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := turns.do(ctx, callLock, 7, func() error { t.Error("started"); return nil })
	if e, ok := errors.AsType[*InterruptedError](err); !ok || e.Started || !strings.Contains(err.Error(), "not started") {
		t.Errorf("error is %v", err)
	}
}

func TestCallsToOneProcessTakeTurns(t *testing.T) {
	var turns turns
	var inside, done int // without a lock: the turn is the lock, and the race detector checks it
	finished := make(chan error)
	for range 50 {
		go func() {
			finished <- turns.do(context.Background(), callGetState, 7, func() error {
				inside++
				if inside != 1 {
					t.Errorf("%d calls at once", inside)
				}
				inside--
				done++
				return nil
			})
		}()
	}
	for range 50 {
		if err := <-finished; err != nil {
			t.Error(err)
		}
	}
	if done != 50 {
		t.Errorf("%d calls were made, want 50", done)
	}
}
