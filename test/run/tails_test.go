package run

import (
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestWhatResumesHaveKeptIsListedAndRemoved on demand, and only then.
func TestWhatResumesHaveKeptIsListedAndRemoved(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run()
		for range 2 {
			r.verified(1)
			w.ticks(2)
			r.killsAll()
			r = w.goesOn(w.newest())
		}
		kept := glob(w.work, "*.cucriu-*")
		if len(kept) < 2 {
			t.Fatalf("only %v was kept", kept)
		}
		cucriu := func(args ...string) string {
			t.Helper()
			out, err := w.host.Cucriu(args...)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		shown := cucriu("jobs", "show", "--json", w.dir)
		would := cucriu("jobs", "prune", "--tails", "--dry-run", w.dir)
		for _, path := range kept {
			if !strings.Contains(shown, path) || !strings.Contains(would, path) {
				t.Errorf("%s is not shown: %s%s", path, shown, would)
			}
		}
		if text := cucriu("jobs", "show", w.dir); !strings.Contains(text, "--tails") {
			t.Errorf("it says nothing of it: %s", text)
		}
		if now := glob(w.work, "*.cucriu-*"); len(now) != len(kept) {
			t.Fatalf("there were %v, and are %v", kept, now)
		}
		removed := cucriu("jobs", "prune", "--tails", w.dir)
		if now := glob(w.work, "*.cucriu-*"); len(now) > 0 || !strings.Contains(removed, kept[0]) {
			t.Errorf("%v are left; it says %s", now, removed)
		}
		if text := cucriu("jobs", "prune", "--tails", w.dir); text != "nothing to remove\n" {
			t.Errorf("it says %q", text)
		}
		if text := cucriu("jobs", "show", w.dir); strings.Contains(text, "--tails") {
			t.Errorf("it shows what is gone: %s", text)
		}
		w.finish(r)
	})
}
