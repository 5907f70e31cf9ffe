// Package long tests long jobs on real criu: cucriu run --dir starts them, makes checkpoints,
// and goes on with them after everything that can happen.
package long

import (
	"os"
	"testing"

	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(jobVariable); dir != "" {
		runJob(dir)
	}
	testenv.SideBySide(8)
	testenv.Main(m)
}

// simulated marks a test that runs on a simulated host.
func simulated(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if testenv.RealDriver() {
		t.Skip("needs the simulated driver: all processes of the host are the test's own")
	}
	testenv.Isolated(t, test)
}
