package dump

import (
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/inject"
	"cucriu/internal/testenv"
)

// TestWhatIsLeftOfATreeRunsOnAfterAFailedDump: the only CUDA process dies while criu dumps
// it, and the parent must not stay stopped because of that.
func TestWhatIsLeftOfATreeRunsOnAfterAFailedDump(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.StartUnder([]string{"/bin/sh", "-c", `"$@"; while :; do sleep 0.05; done`, "sh"}, 1)
		worker := job.MustStatus(0).PID
		fails := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" != post-dump ]`)
		host.UseFailpoint("dump.manifest=kill " + strconv.Itoa(worker))
		dump := host.CriuCommandScripts("dump", t.TempDir(), []string{host.HookBin, fails}, "-t", job.Root())
		_ = dump.Run()
		testenv.Eventually(t, testenv.Soon, "the parent runs", func() bool {
			for _, state := range testenv.ThreadStates(t, job.PID) {
				if state == 'T' || state == 't' {
					return false
				}
			}
			return host.LastOutcome() != "" && len(host.Watchers()) == 0
		})
		if err := unix.Kill(job.PID, 0); err != nil {
			t.Fatal(err)
		}
	})
}

// TestNothingIsLeftStoppedOfALazyDumpThatIsCutOff while criu sends the pages: the CUDA
// process is gone, and the parent must not stay stopped because of that.
func TestNothingIsLeftStoppedOfALazyDumpThatIsCutOff(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.StartUnder([]string{"/bin/sh", "-c", `"$@"; while :; do sleep 0.05; done`, "sh"}, 1)
		worker := job.MustStatus(0).PID
		criu := host.CriuCommand("dump", t.TempDir(), "-t", job.Root(), "--lazy-pages", "--address", "127.0.0.1", "--port", testenv.FreePort(t))
		if err := criu.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "post-dump is over", func() bool { return host.Step() == "transferring" })
		for _, pid := range []int{worker, criu.Process.Pid} {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		_ = criu.Wait()
		testenv.Eventually(t, testenv.Soon, "the session is closed", func() bool { return host.LastOutcome() != "" && len(host.Watchers()) == 0 })
		if len(testenv.NotEnding([]int{job.PID})) == 0 {
			return
		}
		// The CUDA process still existed when criu had ended, so what is left runs on.
		if parked, err := inject.LooksParked(job.PID); err != nil || parked {
			t.Errorf("%s, and the parent is left parked: %v %v", host.LastOutcome(), parked, err)
		}
		for tid, state := range testenv.ThreadStates(t, job.PID) {
			if state == 'T' || state == 't' {
				t.Errorf("%s, and thread %d of the parent is left in state %c", host.LastOutcome(), tid, state)
			}
		}
	})
}

// TestAParentThatWaitsForItsVforkChildIsStopped: the parent waits in the kernel until the
// child has executed a program or ended, so the child must not be kept stopped before that.
func TestAParentThatWaitsForItsVforkChildIsStopped(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		vfork := testenv.Artefact(t, "make workload", "build", "workload", "vfork")
		job := host.StartUnder([]string{"/bin/sh", "-c", `"$@" & exec ` + vfork, "sh"}, 1)
		for range 3 {
			host.Dump(job, "--leave-running")
			host.WaitOutcome("running")
		}
		job.Runs()
	})
}
