// Package dump tests dumps, and what becomes of a job whose dump fails: stock criu with cucriu-hook
// as its action script, cucriu dump, and cucriu recover. It runs on simulated hosts, or on a real
// one with CUCRIU_TEST_DRIVER=real.
package dump

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
	testenv.Main(m)
}
