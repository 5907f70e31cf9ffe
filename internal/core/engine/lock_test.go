package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cucriu/hooks/config"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/proc"
)

func targetsOf(pids ...int) (targets []*Target) {
	for _, pid := range pids {
		ident := proc.Ident{PID: pid}
		targets = append(targets, &Target{Process: &proc.Process{Ident: ident}, Member: &journal.Member{Process: inspect.Process{Ident: ident, Name: fmt.Sprintf("rank%d", pid)}}})
	}
	return targets
}

// A rank that was locked in an earlier round is not the one whose work does not end.
func TestATimeoutBlamesWhoWasNeverLocked(t *testing.T) {
	ranks := targetsOf(1, 2, 3)
	s := &Suspension{Env: session.Of(&config.Hook{Config: config.Default()}), Targets: ranks}
	first := s.newLocking()
	for _, rank := range ranks[:2] {
		if err := first.takeAnswer(t.Context(), lockAnswer{Target: rank, gotIt: true}); err != nil {
			t.Fatal(err)
		}
		rank.locked = false // a call of it did not end: all have to be locked again
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if said := s.newLocking().timeoutError(ctx).Error(); !strings.Contains(said, "GPU work of process 3 (rank3) did not end") {
		t.Errorf("blames others than the third: %s", said)
	}
}

// A lock that the driver gives after another one has failed would never be let go of.
func TestALockThatIsGivenAfterAFailureIsKnown(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 30 { // which of the two is seen first is chance
		rank := targetsOf(1)[0]
		s := &Suspension{Env: session.Of(&config.Hook{Config: config.Default()}), Targets: []*Target{rank}}
		l := s.newLocking()
		l.pending[rank] = true
		go func() { l.answers <- lockAnswer{Target: rank, gotIt: true} }()
		if err := l.run(ctx); err == nil || !rank.locked {
			t.Fatalf("locked is %v, after %v", rank.locked, err)
		}
	}
}

// A failure counts, even if a call in another process did not return, for which there is a way out.
func TestAFailureIsNotTakenForACallThatDidNotReturn(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		of     map[int]error
		inCall bool
		failed error
	}{
		"neither":     {map[int]error{}, false, nil},
		"a call":      {map[int]error{1: fmt.Errorf("process 1: %w", errInCall)}, true, nil},
		"a failure":   {map[int]error{2: broken}, false, broken},
		"one of each": {map[int]error{1: errInCall, 2: broken}, true, broken},
	} {
		inCall, err := parallelCalls(targetsOf(1, 2, 3), func(t *Target) error { return test.of[t.PID] })
		if errors.Is(inCall, errInCall) != test.inCall || !errors.Is(err, test.failed) {
			t.Errorf("%s: %v, %v", name, inCall, err)
		}
	}
}
