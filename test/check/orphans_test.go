package check

import (
	"slices"
	"strings"
	"testing"

	"cucriu/hooks/preflight"
	"cucriu/internal/testenv"
)

// TestAProcessThatHasLeftTheTreeIsNamed: its parent has ended, and a dump would leave it behind. If it uses CUDA, that is
// refused.
func TestAProcessThatHasLeftTheTreeIsNamed(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		for _, test := range []struct {
			script   string
			severity preflight.Severity
		}{
			{`("$@" &); exec sleep 1000`, preflight.SeverityError},
			{`(sleep 1000 & echo); exec "$@"`, preflight.SeverityWarning},
		} {
			job := host.StartUnder([]string{"/bin/sh", "-c", test.script, "sh"}, 1)
			found := testenv.Check(t, host, "-t", job.Root())
			at := slices.IndexFunc(found, func(f preflight.Finding) bool { return f.Name == preflight.FindingParent })
			if at < 0 || found[at].Severity != test.severity || !strings.Contains(found[at].Message, "has left the tree") {
				t.Errorf("%s: %+v", test.script, found)
			}
			if test.severity == preflight.SeverityError {
				testenv.Exits(t, host, testenv.StatusRefused, "dump", "-t", job.Root(), "-D", testenv.NewImages(t))
				if left := testenv.JobOf(t, found[at].PID); !left.Alive() || !job.Alive() {
					t.Error("it was refused, and ended")
				}
			} else {
				job.Runs()
			}
			job.Kill()
		}
	})
}
