package migrate

import (
	"context"
	"io"
	"slices"
	"testing"
	"time"

	"cucriu/hooks"
	"cucriu/hooks/config"
	"cucriu/hooks/timeline"
	"cucriu/internal/migrate/wire"
)

// TestTheTimelineIsOnTheClockOfTheSource: the destination was started an hour earlier.
func TestTheTimelineIsOnTheClockOfTheSource(t *testing.T) {
	const earlier = time.Hour
	ours, theirs := pipe(t)
	go func() {
		for {
			if m, err := theirs.Receive(context.Background()); err != nil || m.Kind != sayClock {
				return
			}
			_ = theirs.Send(sayClock, clockMessage{timeline.SinceBoot() + earlier})
		}
	}()
	r := &remote{Control: ours}
	compared, err := r.compareClocks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if wrong := (compared.ahead - earlier).Abs(); wrong > compared.error {
		t.Errorf("the clock is said to be ahead by %v, which is wrong by more than %v", compared.ahead, compared.error)
	}

	hook := &hooks.Hook{Config: config.Default()}
	hook.Config.RunDir = t.TempDir()
	begun := timeline.SinceBoot()
	s := &treeSource{sourceSession: sourceSession{hook: hook}, begunClock: begun, clocks: clocks{ahead: earlier}}
	s.result = Result{
		ID: "0123456789abcdef", Host: "gpu-b", Phases: []Phase{{Name: "restore", Begin: time.Second, Took: 3 * time.Second}},
	}
	s.there = timeline.Phases{{Name: "restore GPU", Start: (begun + earlier + 2*time.Second).Seconds(), Seconds: 1}}
	trace := s.timeline()
	spans := trace.Spans()
	i := slices.IndexFunc(spans, func(e timeline.Event) bool { return e.Name == "restore GPU" })
	if i < 0 || trace.RowOf(spans[i]) != "gpu-b" {
		t.Fatalf("there are the spans %+v", spans)
	}
	if got := spans[i].Start; got < 1_999_000 || got > 2_001_000 {
		t.Errorf("what was done 2 s after the begin is drawn at %d µs", got)
	}
}

// pipe returns both ends of a connection.
func pipe(t *testing.T) (a, b *wire.Control) {
	fromA, toB := io.Pipe()
	fromB, toA := io.Pipe()
	a, b = wire.NewControl(fromB, toB), wire.NewControl(fromA, toA)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}
