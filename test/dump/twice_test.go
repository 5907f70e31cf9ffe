package dump

import (
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestAHookThatIsNamedTwiceDoesItsWorkOnce: criu before 4.2 reads a configuration file that
// comes over RPC twice, and calls the hook twice at each stage.
func TestAHookThatIsNamedTwiceDoesItsWorkOnce(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(2, "--procs", "2", "--spin", "stream-sync")
		for _, args := range [][]string{{"--leave-running"}, nil} {
			images := host.Dump(job, append(args, "--action-script", host.HookBin)...)
			if args != nil {
				host.WaitOutcome("running")
				job.Runs()
				continue
			}
			host.WaitOutcome("dumped")
			host.Restore(images, "--action-script", host.HookBin)
		}
		host.WaitOutcome("running")
		job.Runs()
	})
}

func TestAHookThatIsNamedTwiceFailsTwiceWithOneError(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		host.Faults("lock return 999")
		run := host.TryDump(job, t.TempDir(), "--action-script", host.HookBin)
		if run.Err == nil || strings.Count(run.Log, "Error (cucriu-hook): lock: ") != 2 {
			t.Fatalf("want the error of the lock twice: %v\n%s", run.Err, run.Lines())
		}
		if sessions := host.Sessions(); len(sessions) != 1 {
			t.Fatalf("%d sessions, want 1: the second call began again", len(sessions))
		}
		host.WaitOutcome("running")
		job.Runs()
	})
}
