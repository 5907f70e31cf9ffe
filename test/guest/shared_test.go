package guest

import (
	"strconv"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// sharers are jobs whose processes have memory of each other.
var sharers = map[string][]string{
	"cuIpc":                {"--ipc", "--mib", "32"},
	"handles":              {"--ipc-vmm", "--mib", "32"},
	"handles, much memory": {"--ipc-vmm", "--mib", "64", "--memory", "vmm"},
}

// startSharing starts a job whose processes share memory, with the library, which is asked to serve that.
func startSharing(t *testing.T, host *testenv.Host, args ...string) *testenv.Job {
	t.Helper()
	host.Setenv("CUCRIU_CONFIG", host.Config(patient))
	host.Setenv("CUCRIU_SHARING", "1")
	job := host.StartUnder(testenv.WithGuest(t), 2, args...)
	job.Runs()
	return job
}

// TestWhatProcessesShareComesBack: it is taken down before the driver checkpoints, and put up again when all have their own.
func TestWhatProcessesShareComesBack(t *testing.T) {
	testenv.Parallel(t)
	for name, args := range sharers {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 2, "--mib-per-gpu", "800")
				job := startSharing(t, host, args...)
				goesOn := func() {
					moved(t, host, host.TryDump(job, testenv.NewImages(t), "-R"))
					host.WaitOutcome("running")
					job.Runs()
					job.Check()
				}
				goesOn()
				goesOn()
				images := testenv.NewImages(t)
				moved(t, host, host.TryDump(job, images))
				host.Restore(images)
				job.Runs()
				job.Check()
				goesOn()
			})
		})
	}
}

// TestASharerIsOutsideOfTheJob: what it has could not be taken down.
func TestASharerIsOutsideOfTheJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2, "--mib-per-gpu", "400")
		job := startSharing(t, host, sharers["cuIpc"]...)
		owner := job.MustStatus(0).PID
		out := testenv.Exits(t, host, testenv.StatusRefused, "dump", "-t", strconv.Itoa(owner), "-D", testenv.NewImages(t))
		if !strings.Contains(out, "shared-gpu-memory") || !strings.Contains(out, "outside the dumped tree") {
			t.Errorf("cucriu dump: %s", out)
		}
		job.Runs()
		job.Check()
	})
}

// TestSomebodyIsKilledWhileMemoryIsShared again, or before.
func TestSomebodyIsKilledWhileMemoryIsShared(t *testing.T) {
	testenv.Parallel(t)
	for point, recovers := range map[string]bool{
		"told-list=kill":                      false,
		"told-out-kept=kill":                  false,
		"dump.moved=kill":                     false,
		"dump.checkpoint=kill":                false,
		"dump.back.share=error":               false,
		"dump.back.share=kill":                true,
		"dump.back.move=kill":                 true,
		"told-give=kill":                      true,
		"told-take=kill":                      true,
		"dump.dumping=kill-watcher+kill":      true,
		"dump.dumping=kill-watcher+kill-criu": true,
	} {
		t.Run(point, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 2, "--mib-per-gpu", "400")
				job := startSharing(t, host, sharers["handles"]...)
				survives(t, host, job, point, recovers)
				moved(t, host, host.TryDump(job, testenv.NewImages(t), "-R"))
				host.WaitOutcome("running")
				job.Runs()
				job.Check()
			})
		})
	}
}
