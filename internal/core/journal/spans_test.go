package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cucriu/hooks/timeline"
	"cucriu/internal/core/inspect"
	"cucriu/internal/kit/proc"
)

func TestSpansOfSeveralProcessesAreNotedBesideTheSteps(t *testing.T) {
	s := testSession(t, t.TempDir(), 7)
	s.By = "pre-dump"
	err := step(s, StepLock, func() error {
		var wg sync.WaitGroup
		for pid := range 8 {
			wg.Go(func() { _ = s.Span(pid+1, "lock", func() error { return nil }) })
		}
		wg.Wait()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := step(s, StepCheckpoint, func() error { return errors.New("no") }); err == nil {
		t.Fatal("a step that fails succeeded")
	}
	if len(s.Phases) != 10 {
		t.Fatalf("%d spans, want 10: %+v", len(s.Phases), s.Phases)
	}
	if steps := s.Phases.Steps(); len(steps) != 1 || steps[0].Name != "lock" {
		t.Errorf("steps: %+v", steps)
	}
	again, err := Read(s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	if len(again.Phases) != 9 || again.CreatedClock != s.CreatedClock { // the last step has not been saved yet
		t.Errorf("read again: %+v", again)
	}
	whole := s.Phases[8]
	for _, phase := range s.Phases[:8] {
		if phase.Start < whole.Start || phase.End() > whole.End() {
			t.Errorf("%+v is not inside %+v", phase, whole)
		}
	}
}

// step begins a step and does it.
func step(s *Session, name Step, do func() error) error {
	if err := s.Begin(name); err != nil {
		return err
	}
	return s.Span(0, string(name), do)
}

// TestATimelineIsAChromeTrace: spans are in order, those of one row are nested or apart, and
// every row has a name.
func TestATimelineIsAChromeTrace(t *testing.T) {
	s := testSession(t, t.TempDir(), 7)
	s.Members = []Member{{Process: inspect.Process{Ident: proc.Ident{PID: 8}, Name: "train"}}, {Process: inspect.Process{Ident: proc.Ident{PID: 9}, Name: "serve"}}}
	s.By = "pre-dump"
	both := func(name string) func() error {
		return func() error {
			var wg sync.WaitGroup
			for _, member := range s.Members {
				wg.Go(func() { _ = s.Span(member.PID, name, func() error { return nil }) })
			}
			wg.Wait()
			return nil
		}
	}
	for _, name := range []string{"lock", "checkpoint", "dumping"} {
		if err := step(s, Step(name), both(name)); err != nil {
			t.Fatal(err)
		}
	}
	s.NoteCriu()
	s.NoteCriu() // a second call must note nothing
	s.By = "watcher"
	outer := func() error { return errors.Join(s.Span(0, "restore", both("restore")), errors.New("no")) }
	if err := step(s, "back", outer); err == nil {
		t.Fatal("a step that fails succeeded")
	}
	// Two spans of one process that overlap; neither contains the other.
	s.Phases = append(s.Phases, timeline.Phase{Name: "drop", PID: 8, Start: 100, Seconds: 2, By: "watcher"}, timeline.Phase{Name: "copy", PID: 8, Start: 101, Seconds: 2, By: "watcher"})
	if err := errors.Join(closed(s, OutcomeGone), s.WriteTimeline()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(s.Dir(), timelineFile))
	if err != nil {
		t.Fatal(err)
	}
	trace, err := timeline.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.Timeline(), trace); diff != "" {
		t.Errorf("it is not what was written: %s", diff)
	}
	checkNesting(t, trace)
	count := make(map[string]int)
	for _, span := range trace.Spans() {
		count[fmt.Sprintf("%s of %s by %s, failed %v", span.Name, trace.RowOf(span), span.Category, span.Failed())]++
	}
	want := map[string]int{
		"criu of dump by criu by criu, failed false": 1, "restore of dump by criu by watcher, failed false": 1, "back of dump by criu by watcher, failed true": 1,
		"restore of train by watcher, failed false": 1, "drop of train by watcher, failed false": 1, "copy of train by watcher, failed false": 1, "restore of serve by watcher, failed false": 1,
	}
	for _, name := range []string{"lock", "checkpoint", "dumping"} {
		for _, row := range []string{"dump by criu", "train", "serve"} {
			want[name+" of "+row+" by pre-dump, failed false"] = 1
		}
	}
	if diff := cmp.Diff(want, count); diff != "" {
		t.Errorf("spans: %s", diff)
	}
}

func checkNesting(t *testing.T, trace timeline.Trace) {
	t.Helper()
	open := make(map[int][]timeline.Event) // by thread: the events that contain what comes next
	before := int64(0)
	for _, span := range trace.Spans() {
		if span.Start < before {
			t.Errorf("%+v is out of order", span)
		}
		before = span.Start
		row := open[span.TID]
		for len(row) > 0 && row[len(row)-1].Start+row[len(row)-1].Duration <= span.Start {
			row = row[:len(row)-1]
		}
		if len(row) > 0 && span.Start+span.Duration > row[len(row)-1].Start+row[len(row)-1].Duration {
			t.Errorf("%+v is half in %+v", span, row[len(row)-1])
		}
		open[span.TID] = append(row, span)
	}
}
