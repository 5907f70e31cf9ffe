package restore

import (
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestARootThatAskedForASignalAtItsParentsDeathLives (PR_SET_PDEATHSIG): its parent after a restore is
// criu, which ends. The other processes keep what they asked for.
func TestARootThatAskedForASignalAtItsParentsDeathLives(t *testing.T) {
	testenv.Parallel(t)
	parent := []string{"setpriv", "--pdeathsig", "KILL", "/bin/sh", "-c", `setpriv --pdeathsig KILL "$@"; :`, "sh"}
	dies := func(t *testing.T, job *testenv.Job) {
		t.Helper()
		job.Runs()
		worker := job.MustStatus(0).PID
		if worker == job.PID {
			t.Fatal("the CUDA process is the root")
		}
		job.Signal(unix.SIGKILL)
		testenv.Eventually(t, testenv.Soon, "the worker ends with its parent", func() bool { return len(testenv.NotEnding([]int{worker})) == 0 })
	}
	t.Run("cucriu", func(t *testing.T) {
		testenv.Simulated(t, func(t *testing.T) {
			host := testenv.NewHost(t, 1)
			job := host.StartUnder(parent, 1)
			images := testenv.NewImages(t)
			testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
			testenv.Exits(t, host, 0, "restore", "-D", images)
			dies(t, job)
		})
	})
	t.Run("criu with the hook", func(t *testing.T) {
		testenv.Simulated(t, func(t *testing.T) {
			host := testenv.NewHost(t, 1)
			job := host.StartUnder(parent, 1)
			host.Restore(host.Dump(job))
			dies(t, job)
		})
	})
}

// TestARootWithoutCUDALosesTheDeathSignal as well.
func TestARootWithoutCUDALosesTheDeathSignal(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		pid := host.Spawn(t.TempDir(), "setpriv", "--pdeathsig", "KILL", "sleep", "1000")
		job := testenv.JobOf(t, pid)
		testenv.Eventually(t, testenv.Soon, "it sleeps", func() bool { return testenv.ProcessName(pid) == "sleep" })
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		testenv.Exits(t, host, 0, "restore", "-D", images)
		if !job.Alive() { // criu has ended by now
			t.Error("it was ended by the signal for its parent's death")
		}
	})
}
