package hooks

import (
	"errors"
	"sync"
	"testing"
)

func TestSpansOfSeveralProcessesAreNotedBesideTheSteps(t *testing.T) {
	s := testSession(t, t.TempDir(), 7)
	s.by = "pre-dump"
	err := s.step("lock", func() error {
		var wg sync.WaitGroup
		for pid := range 8 {
			wg.Go(func() { _ = s.span(pid+1, "lock", func() error { return nil }) })
		}
		wg.Wait()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.step("checkpoint", func() error { return errors.New("no") }); err == nil {
		t.Fatal("a step that fails succeeded")
	}
	if len(s.Phases) != 10 {
		t.Fatalf("%d spans, want 10: %+v", len(s.Phases), s.Phases)
	}
	if steps := s.Phases.Steps(); len(steps) != 1 || steps[0].Name != "lock" {
		t.Errorf("steps: %+v", steps)
	}
	again, err := loadAgain(s)
	if err != nil {
		t.Fatal(err)
	}
	if len(again.Phases) != 9 || again.CreatedClock != s.CreatedClock { // the last step was not saved yet
		t.Errorf("read again: %+v", again)
	}
	step := s.Phases[8]
	for _, phase := range s.Phases[:8] {
		if phase.Start < step.Start || phase.end() > step.end() {
			t.Errorf("%+v is not inside %+v", phase, step)
		}
	}
}

func loadAgain(s *Session) (*Session, error) {
	again := &Session{dir: s.dir}
	return again, again.read()
}
