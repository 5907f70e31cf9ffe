package dump

import (
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestARunDirectoryWithoutRoomRefusesADump: what is at work could not say any more how it stands.
func TestARunDirectoryWithoutRoomRefusesADump(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		testenv.SmallDisk(t, host.RunDir, "64k")
		job := host.Start(1, "--mib", "1")
		says := testenv.Exits(t, host, testenv.StatusRefused, "dump", "-t", job.Root(), "-D", testenv.NewImages(t))
		if !strings.Contains(says, "the run directory "+host.RunDir+" has ") || !strings.Contains(says, "free 256 KiB there") {
			t.Errorf("dump: %s", says)
		}
		job.Runs()
	})
}
