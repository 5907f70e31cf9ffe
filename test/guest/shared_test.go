package guest

import (
	"testing"

	"cucriu/internal/testenv"
)

// TestWhatProcessesShareComesBack: it is taken down before the driver checkpoints, and put up again when all have their own.
func TestWhatProcessesShareComesBack(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2, "--mib-per-gpu", "400")
		host.Setenv("CUCRIU_CONFIG", host.Config(patient))
		host.Setenv("CUCRIU_SHARING", "1")
		job := host.StartUnder(testenv.WithGuest(t), 2, "--ipc", "--mib", "32")
		job.Runs()
		for range 2 {
			moved(t, host, host.TryDump(job, testenv.NewImages(t), "-R"))
			host.WaitOutcome("running")
			job.Runs()
			job.Check()
		}
		images := testenv.NewImages(t)
		moved(t, host, host.TryDump(job, images))
		host.Restore(images)
		job.Runs()
		job.Check()
		moved(t, host, host.TryDump(job, testenv.NewImages(t), "-R"))
		host.WaitOutcome("running")
		job.Runs()
		job.Check()
	})
}
