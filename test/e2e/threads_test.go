package e2e

import (
	"testing"

	"cucriu/internal/testenv"
)

// TestAThousandBusyThreadsAreDumped although the deadline is one that a process
// with few threads needs: what waits for theirs, or for a CPU beside them, has more.
func TestAThousandBusyThreadsAreDumped(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nlock: {timeout: 100ms, try: 100ms}\n"))
		job := host.Start(1, "--burn", "1000")
		host.Restore(host.Dump(job))
		job.Runs()
	})
}
