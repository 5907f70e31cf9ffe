package inside

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// TestAWarningIsToldOnce a job, and not at each of its checkpoints; errors always are.
func TestAWarningIsToldOnce(t *testing.T) {
	var known []string
	var said bytes.Buffer
	for range 3 { // checkpoints
		w := toldBefore(known)
		log := slog.New(told{slog.NewTextHandler(&said, nil), w, nil}).With("stage", "pre-dump")
		log.Warn("thp: off", "finding", "thp")
		log.Warn("a file is in use under a removed name", "file", "\xff1")
		log.Warn("a file is in use under a removed name", "file", "2")
		log.Error("it failed")
		known = append(known, w.new()...)
	}
	for text, want := range map[string]int{"thp: off": 1, "removed name": 2, "it failed": 3} {
		if got := strings.Count(said.String(), text); got != want {
			t.Errorf("%q was told %d times, want %d:\n%s", text, got, want, &said)
		}
	}
	w := toldBefore(nil)
	for n := range 3 * MaxTold {
		if !w.isNew(fmt.Sprint(n)) {
			t.Fatalf("warning %d was not told", n)
		}
	}
	if len(w.new()) != MaxTold {
		t.Errorf("%d are remembered, want %d", len(w.new()), MaxTold)
	}
}
