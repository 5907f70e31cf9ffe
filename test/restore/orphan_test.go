package restore

import (
	"path/filepath"
	"syscall"
	"testing"

	"cucriu/criuutil"
	"cucriu/internal/testenv"
)

// TestAHalfRestoredJobIsEndedAlthoughNobodyHasSeenItsRoot: without namespaces criu first names the root
// task when every process is complete. They are in criu's restorer then, with the program and the limits
// of the job, and wait for criu until somebody ends them.
func TestAHalfRestoredJobIsEndedAlthoughNobodyHasSeenItsRoot(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job := host.Start(2, "--procs", "2", "--gpus", "0,1", "--mib", "2")
		images, dir := host.Dump(job), t.TempDir()
		scripts := []string{ // criu runs the last one first
			testenv.Script(t, `[ $CRTOOLS_SCRIPT_ACTION != pre-restore ] || exec `+testenv.WaitsForGo(t, dir)),
			host.HookBin,
			testenv.Script(t, `[ $CRTOOLS_SCRIPT_ACTION != post-restore ] || kill -KILL $PPID`),
		}
		restore := host.CriuCommandScripts("restore", images, scripts, "-d")
		if err := restore.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "the watcher has been started", func() bool { return testenv.Exists(filepath.Join(dir, "reached")) })
		host.KillWatcher()
		testenv.WriteFile(t, filepath.Join(dir, "go"), "")
		_ = restore.Wait()
		if restore.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL || !job.Alive() {
			t.Fatalf("criu restore: %v, and the job is there: %v", restore.ProcessState, job.Alive())
		}
		if out, err := host.Cucriu("recover"); err != nil || host.RestoreOutcome() != "killed" {
			t.Errorf("cucriu recover: %v, outcome %s\n%s", err, host.RestoreOutcome(), out)
		}
		testenv.Eventually(t, testenv.Soon, "the half-restored job is ended", job.Gone)
		host.Restore(images)
		job.Runs()
		sessions := host.Sessions()
		mark := sessions[len(sessions)-1].Mark
		for _, pid := range job.PIDs() {
			if len(mark) == 0 || criuutil.HasMark(pid, mark) {
				t.Errorf("process %d runs, and has the mark %v of what is half restored", pid, mark)
			}
		}
	})
}
