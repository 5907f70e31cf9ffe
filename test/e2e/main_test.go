// Package e2e tests everything together on real criu: stock criu, with cucriu-hook as its
// action script, dumps and restores jobs that use CUDA. It runs on simulated hosts, or on a
// real one with CUCRIU_TEST_DRIVER=real.
package e2e

import (
	"os"
	"testing"

	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv(untracedVariable) != "" {
		os.Exit(waitUntraced(os.Args[1:]))
	}
	if dir := os.Getenv(programVariable); dir != "" {
		runProgram(dir)
	}
	if to := os.Getenv(connectVariable); to != "" {
		connectAndExec(to)
	}
	testenv.SideBySide(5)
	testenv.Main(m)
}

// simulated marks a test that needs what only the simulated driver has: several hosts on
// one machine, and faults on request.
func simulated(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if testenv.RealDriver() {
		t.Skip("needs the simulated driver")
	}
	testenv.Isolated(t, test)
}
