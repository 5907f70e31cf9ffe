package jobs

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"cucriu/internal/jobs/store"
)

func TestTheIntervalFollowsTheCost(t *testing.T) {
	for _, test := range []struct {
		name     string
		every    time.Duration
		overhead float64
		last     costs
		want     time.Duration
	}{
		{"as told", time.Hour, 0, costs{{time.Second, time.Minute}}, time.Hour},
		{"not known yet", time.Hour, 0.01, nil, time.Hour},
		{"by the pause", time.Hour, 0.01, costs{{6 * time.Second, time.Minute}, {time.Second, time.Minute}}, 10 * time.Minute},
		{"no sooner than the way to the store allows", time.Hour, 0.5, costs{{time.Second, time.Minute}}, time.Minute},
		{"not too often", time.Hour, 0.5, costs{{time.Millisecond, time.Millisecond}}, leastEvery},
	} {
		s := &checkpointer{core: &core{Options: Options{Every: test.every, Overhead: test.overhead}}, costs: test.last}
		if got := s.interval(); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
		if got := s.untilNext(nil); got < test.want*94/100 || got > test.want*106/100 {
			t.Errorf("%s: %v with jitter", test.name, got)
		}
	}
}

func TestAFailedCheckpointIsTriedSoonAndThenLessOften(t *testing.T) {
	s := &checkpointer{core: &core{Options: Options{Every: time.Minute}}}
	failed := errors.New("no")
	var waits []time.Duration
	for range 6 {
		waits = append(waits, s.untilNext(failed))
	}
	want := []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute}
	for i := range want {
		if waits[i] != want[i] {
			t.Fatalf("%v, want %v", waits, want)
		}
	}
	s.untilNext(nil)
	if again := s.untilNext(failed); again != retryFirst {
		t.Errorf("after one that was made: %v", again)
	}
}

func TestACheckpointThatTakesTooLongIsLeftOutUntilThatIsForgotten(t *testing.T) {
	s := &checkpointer{core: &core{Options: Options{MaxPause: time.Second}}}
	if _, is := s.exceedsMaxPause(); is {
		t.Error("left out before anything is known")
	}
	s.costs = s.costs.add(cost{pause: 2 * time.Second})
	if pause, is := s.exceedsMaxPause(); !is || pause != 2*time.Second {
		t.Errorf("%v, %v", pause, is)
	}
	for range keepCosts {
		s.costs = s.costs.add(cost{pause: time.Millisecond})
	}
	if _, is := s.exceedsMaxPause(); is || len(s.costs) != keepCosts {
		t.Errorf("%d costs are kept", len(s.costs))
	}
}

// TestTheLastImageIsBasedOnNone: until it is a checkpoint, it may be all that there is of the job.
func TestTheLastImageIsBasedOnNone(t *testing.T) {
	s := &checkpointer{core: openedCore(t)}
	if base := s.base(false); base != "" {
		t.Errorf("based on %s before there is a checkpoint", base)
	}
	images := filepath.Join(t.TempDir(), "image")
	makeImage(t, images, stagedAt(t, 0))
	c, err := s.store.Publish(t.Context(), images, store.Info{CreatedAt: time.Now(), RootPID: 7})
	if err != nil {
		t.Fatal(err)
	}
	if base := s.base(false); base != c.Dir {
		t.Errorf("based on %q, want %s", base, c.Dir)
	}
	if base := s.base(true); base != "" {
		t.Errorf("the last one is based on %s", base)
	}
	if s.failures = 1; s.base(false) != "" {
		t.Error("the first one after a failure is based on another")
	}
}
