package restore

import (
	"testing"

	"cucriu/internal/testenv"
)

// TestAProcessWithoutOpenFilesIsRestored: criu writes no list of its files, and an image without one counts as
// incomplete.
func TestAProcessWithoutOpenFilesIsRestored(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		pid := host.Spawn(t.TempDir(), "sh", "-c", "exec sleep 1000 <&- >&- 2>&-")
		job := testenv.JobOf(t, pid)
		testenv.Eventually(t, testenv.Soon, "it sleeps", func() bool { return testenv.ProcessName(pid) == "sleep" })
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		testenv.Exits(t, host, 0, "restore", "-D", images)
		if !job.Alive() {
			t.Error("it is not back")
		}
	})
}
