// Package run tests cucriu run: the starter of a job that others dump and, with --dir, the supervisor
// of a long job, which makes checkpoints and resumes the job after everything that can happen.
package run

import (
	"os"
	"testing"

	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(jobVariable); dir != "" {
		runJob(dir)
	}
	if dir := os.Getenv(holderVariable); dir != "" {
		runHolder(dir)
	}
	testenv.Main(m, 5) // it is the longest, and mostly waits
}
