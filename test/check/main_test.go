// Package check tests what is found before a dump or a restore touches anything: by cucriu check, and
// in the same words by the command itself. It runs on simulated hosts, or on a real one with
// CUCRIU_TEST_DRIVER=real.
package check

import (
	"os"
	"testing"

	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) {
	if to := os.Getenv(connectVariable); to != "" {
		connectAndExec(to)
	}
	testenv.Main(m)
}
