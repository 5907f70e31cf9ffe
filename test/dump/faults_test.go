package dump

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// undumpable is a parent process that holds a device which criu refuses to dump.
func undumpable(t *testing.T) []string {
	t.Helper()
	device := filepath.Join(t.TempDir(), "device")
	if err := unix.Mknod(device, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 229))); err != nil { // fuse
		t.Fatal(err)
	}
	return []string{"/bin/sh", "-c", `exec 9<>"$1"; shift; "$@" & wait`, "sh", device}
}

// onlyOnAGPU marks a test for the real driver. On the simulated driver, the fault matrix
// covers it.
func onlyOnAGPU(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if !testenv.RealDriver() {
		t.Skip("on the simulated driver test/faults covers this, and more")
	}
	testenv.Isolated(t, test)
}

var dumpSteps = []string{"lock", "stop", "park", "children", "trace", "checkpoint", "prefault", "copying", "release", "devices", "copy", "drop", "noted", "dropping", "inaccessible", "freeze", "manifest", "dumping"}

func TestTheHookIsKilledAtEachStepOfTheDump(t *testing.T) {
	for _, step := range dumpSteps {
		for _, how := range []string{"kill", "error"} {
			t.Run(step+"-"+how, func(t *testing.T) {
				onlyOnAGPU(t, func(t *testing.T) {
					host := testenv.NewHost(t, 1)
					host.UseFailpoint("dump." + step + "=" + how)
					job := host.Start(2, "--procs", "2", "--mib", "20", "--spin", "event-sync")
					if step == "prefault" && how == "error" {
						host.Restore(host.Dump(job)) // this fault does not make the dump fail
						job.Runs()
						return
					}
					run := host.TryDump(job, t.TempDir())
					if run.Err == nil {
						t.Fatal("criu dumped although its hook failed")
					}
					host.WaitOutcome("running")
					job.Runs()
				})
			})
		}
	}
}

func TestTheHookIsKilledInTheMiddleOfACall(t *testing.T) {
	testenv.Parallel(t)
	for _, call := range []string{"lock", "checkpoint"} {
		t.Run(call, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				host.Faults(call + " hang")
				job := host.Start(1)
				criu := host.CriuCommand("dump", t.TempDir(), "-t", job.Root())
				if err := criu.Start(); err != nil {
					t.Fatal(err)
				}
				testenv.Eventually(t, testenv.Soon, "the hook is in "+call, func() bool { return host.Step() == call })
				time.Sleep(200 * time.Millisecond) // the call is under way
				host.KillHook(criu.Process.Pid)
				host.Faults()
				if err := criu.Wait(); err == nil {
					t.Fatal("criu dumped although its hook was killed")
				}
				host.WaitOutcome("running")
				job.Runs()
			})
		})
	}
}

func TestTheHookIsKilledAtEachStepOfTheRestore(t *testing.T) {
	for _, test := range []struct {
		step, how string
		runs      bool // the job runs in the end; else nothing is left of it and the image can be restored
	}{
		{"pre-restore", "kill", false},
		{"pre-restore", "error", false},
		{"pre-resume", "kill", false},
		{"pre-resume", "error", false},
		{"post-resume", "kill", true},
		{"post-resume", "error", false},
	} {
		t.Run(test.step+"-"+test.how, func(t *testing.T) {
			onlyOnAGPU(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(2, "--procs", "2", "--spin", "stream-sync")
				images := host.Dump(job)
				good := *host
				host.UseFailpoint("restore." + test.step + "=" + test.how)
				run := host.TryRestore(images)
				if test.step == "pre-restore" && run.Err == nil {
					t.Fatal("criu restored although pre-restore failed")
				}
				if test.runs {
					testenv.Eventually(t, testenv.Soon, "the watcher completes the restore", func() bool { return host.LastOutcome() == "running" })
					job.Runs()
					return
				}
				testenv.Eventually(t, testenv.Soon, "the half-restored job is gone", func() bool { return !job.Alive() })
				if out, err := good.Cucriu("recover"); err != nil {
					t.Fatalf("cucriu recover: %v\n%s", err, out)
				}
				testenv.Eventually(t, testenv.Soon, "the session is closed", func() bool { return host.LastOutcome() != "" })
				good.Restore(images)
				job.Runs()
			})
		})
	}
}

func TestTheHookIsKilledWhileTheDriverRestores(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job := host.Start(1, "--gpus", "0")
		images := host.Dump(job)
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\ngpus: {map: [{from: {index: 0}, to: {index: 1}}]}\n"))
		host.Faults("restore hang")
		criu := host.CriuCommand("restore", images, "-d")
		if err := criu.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "the hook is in post-resume", func() bool { return host.Step() == "post-resume" })
		time.Sleep(300 * time.Millisecond) // the call is under way
		host.KillHook(criu.Process.Pid)
		host.Faults()
		_ = criu.Wait()
		testenv.Eventually(t, testenv.Soon, "the watcher completes the restore", func() bool { return host.LastOutcome() == "running" })
		job.Runs()
		if got := job.MustStatus(0).GPUs[0].UUID; got != host.UUIDs()[1] {
			t.Fatalf("the job is on %s, want %s", got, host.UUIDs()[1])
		}
	})
}

func TestTheDriverFailsAtRestoreAndTheImageStaysGood(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(2, "--procs", "2")
		images := host.Dump(job)
		host.Faults("restore return 999 times 1")
		run := host.TryRestore(images)
		testenv.Eventually(t, testenv.Soon, "the half-restored job is gone", func() bool { return !job.Alive() })
		if host.LastOutcome() != "killed" || !strings.Contains(run.Log, "999") {
			t.Fatalf("outcome %s\n%s", host.LastOutcome(), run.Lines())
		}
		host.Faults()
		host.Restore(images)
		job.Runs()
	})
}

// TestTheHookIsKilledUnderACriuThatStays: without -d, criu lives as long as the job and
// does not notice that its hook has died.
func TestTheHookIsKilledUnderACriuThatStays(t *testing.T) {
	testenv.Parallel(t)
	for _, step := range []string{"pre-resume", "post-resume"} {
		t.Run(step, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(1, "--spin", "event-query")
				images := host.Dump(job)
				good := *host
				host.UseFailpoint("restore." + step + "=kill")
				criu := host.CriuCommand("restore", images)
				if err := criu.Start(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = criu.Wait() })
				testenv.Eventually(t, testenv.Soon, "the restore is taken to an end", func() bool { return host.RestoreOutcome() != "" })
				if step == "post-resume" {
					job.Runs()
					job.Signal(unix.SIGKILL)
					return
				}
				testenv.Eventually(t, testenv.Soon, "the half-restored job is gone", job.Gone)
				good.Restore(images)
				job.Runs()
			})
		})
	}
}

func TestAFailedDumpThatWasToLeaveTheJobStoppedLeavesItRunning(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.StartUnder(undumpable(t), 1)
		if run := host.TryDump(job, t.TempDir(), "--leave-stopped"); run.Err == nil {
			t.Fatal("criu dumped a device")
		}
		host.WaitOutcome("running")
		job.Runs()
	})
}

// TestTheJobIsStoppedDuringTheLock, as by Ctrl-Z: the lock returns only when the job runs
// again.
func TestTheJobIsStoppedDuringTheLock(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nlock: {timeout: 10s}\n"))
		host.Faults("lock hang")
		job := host.Start(1)
		criu := host.CriuCommand("dump", t.TempDir(), "-t", job.Root())
		if err := criu.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "the hook locks", func() bool { return host.Step() == "lock" })
		time.Sleep(100 * time.Millisecond) // the call is under way
		job.Signal(unix.SIGSTOP)
		testenv.Eventually(t, testenv.Soon, "the job is stopped", job.Stopped)
		host.Faults()
		if err := criu.Wait(); err == nil {
			t.Fatal("a job that was stopped during the lock was dumped")
		}
		host.WaitOutcome("running")
		job.Runs()
	})
}

// TestTheWatcherIsFasterThanALatePostResume: another script delays criu between its resume
// and our post-resume, so that the restore seems to have been cut off.
func TestTheWatcherIsFasterThanALatePostResume(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := host.Dump(job)
		slow := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" = post-resume ] && sleep 4; exit 0`)
		// criu runs the last script first.
		out, err := host.CriuCommandScripts("restore", images, []string{host.HookBin, slow}, "-d").CombinedOutput()
		if err != nil {
			t.Fatalf("criu restore: %v\n%s", err, out)
		}
		if got := host.RestoreOutcome(); got != "running" {
			t.Fatalf("outcome %q, want running", got)
		}
		job.Runs()
	})
}
