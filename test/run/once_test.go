package run

import (
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestAWarningIsToldOnceAJob, and not at each checkpoint: on this host NVML does not say what a process holds.
func TestAWarningIsToldOnceAJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		w.host.NVML("unknown")
		r := w.run("--guest", "off")
		for range 3 {
			r.verified(1)
		}
		if n := strings.Count(r.said(), "warning: memory-unknown"); n != 1 {
			t.Errorf("the warning was told %d times:\n%s", n, r.said())
		}
		w.finish(r)
	})
}
