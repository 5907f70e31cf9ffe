package dump

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/testenv"
)

func TestThreadsThatSynchronizeSurvive(t *testing.T) {
	testenv.Parallel(t)
	for _, mode := range testenv.SpinModes {
		t.Run(mode, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(1, "--spin", mode, "--threads", "3")
				images := host.Dump(job)
				host.Restore(images)
				job.Runs()
			})
		})
	}
}

// TestWithoutTheStopTheyDie shows the danger that the stop prevents: lock and checkpoint
// alone kill the job.
func TestWithoutTheStopTheyDie(t *testing.T) {
	testenv.Parallel(t)
	for _, mode := range testenv.SpinModes {
		t.Run(mode, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(1, "--spin", mode)
				process := host.Driver().Process(job.PID)
				if err := process.Lock(t.Context(), cudackpt.LockOptions{Timeout: testenv.Soon}); err != nil {
					t.Fatal(err)
				}
				_ = process.Checkpoint(t.Context()) // with any result
				testenv.Eventually(t, testenv.Soon, "the job dies", func() bool { return !job.Alive() })
			})
		})
	}
}

func TestRanksInACollectiveAreLockedTogether(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job := host.Start(2, "--ranks", "2", "--gpus", "0,1")
		driver := host.Driver()

		// One after the other would deadlock: the second process waits for the first, which
		// is locked.
		first, second := driver.Process(job.MustStatus(0).PID), driver.Process(job.MustStatus(1).PID)
		if err := first.Lock(t.Context(), cudackpt.LockOptions{Timeout: testenv.Soon}); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "the second is in its next collective, and cannot be locked", func() bool {
			locked, err := second.TryLock(t.Context(), 500*time.Millisecond)
			if err == nil && locked {
				err = second.Unlock(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			return !locked
		})
		if err := first.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		job.WaitTicks(3)

		images := host.Dump(job)
		host.Restore(images)
		job.Runs()
	})
}

func TestManagedMemoryIsRefusedAndTheJobRunsOn(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--managed")
		run := host.TryDump(job, t.TempDir())
		if run.Err == nil || !strings.Contains(run.Log, "managed memory") {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		job.Runs()
	})
}

func TestALongKernelIsWaitedFor(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--busy-ms", "700", "--tick-ms", "0")
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nlock: {timeout: 60s, try: 100ms}\n"))
		host.Restore(host.Dump(job))
		job.Runs()
	})
}

func TestAKernelThatOutlastsTheDeadlineEndsTheDumpAndNotTheJob(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--busy-ms", "5000", "--tick-ms", "0")
		// The inspection has as long as the lock.
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nlock: {timeout: 3s, try: 100ms}\n"))
		job.WaitTicks(1) // the next kernel begins now
		images := t.TempDir()
		run := host.TryDump(job, images)
		for !strings.Contains(run.Log, "lock.timeout") {
			if run.Err == nil { // it came to the lock when the kernel was nearly over
				testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
				host.Restore(images)
			} else { // what comes before the lock took as long, on a busy machine
				t.Logf("criu dump: %v\n%s", run.Err, run.Lines())
			}
			job.WaitTicks(1)
			images = t.TempDir()
			run = host.TryDump(job, images)
		}
		job.Runs()
	})
}

func TestSIGSTOPBeforeTheDumpIsNotTheHooks(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--managed")
		job.Signal(unix.SIGSTOP)
		testenv.Eventually(t, testenv.Soon, "the job stops", job.Stopped)
		if run := host.TryDump(job, t.TempDir()); run.Err == nil || !strings.Contains(run.Log, "managed memory") {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		if !job.Stopped() {
			t.Fatal("a job that was stopped beforehand runs after a failed dump")
		}
		job.Signal(unix.SIGCONT)
		job.Runs()
	})
}
