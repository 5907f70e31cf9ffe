package guest

import (
	"runtime"
	"testing"

	"cucriu/internal/testenv"
)

// TestSharersHaveAnOlderLibrary, which takes what one process gives at a time.
func TestSharersHaveAnOlderLibrary(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2, "--mib-per-gpu", "400")
		host.Setenv("CUCRIU_CONFIG", host.Config(testenv.Patient))
		library := testenv.Artefact(t, "make guest", "build", "test", "small-v4-"+runtime.GOARCH+".so")
		job := host.StartUnder([]string{"/usr/bin/env", "LD_PRELOAD=" + library}, 3, "--ranks", "3", "--mesh", "2", "--gpus", theGPUs)
		job.Runs()
		moved(t, host, host.TryDump(job, testenv.NewImages(t), "-R"))
		host.WaitOutcome("running")
		job.Runs()
		job.Check()
	})
}
