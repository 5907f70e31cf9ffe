// Package dump tests dumps, and what becomes of a job whose dump fails: stock criu with cucriu-hook
// as its action script, cucriu dump, and cucriu recover. It runs on simulated hosts, or on a real
// one with CUCRIU_TEST_DRIVER=real.
package dump

import (
	"fmt"
	"os"
	"strconv"
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
	if pid, err := strconv.Atoi(os.Getenv(closedVariable)); err == nil {
		if err := closeMemory(pid); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testenv.Main(m)
}
