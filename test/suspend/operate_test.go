package suspend

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

func TestAJobRunsOnWhereverItsSuspendFailsOrIsKilled(t *testing.T) {
	testenv.Parallel(t)
	for _, step := range []string{"lock", "stop", "park", "trace", "checkpoint", "release", "suspended"} {
		for _, how := range []string{"kill", "error"} {
			t.Run(step+"-"+how, func(t *testing.T) {
				testenv.Isolated(t, func(t *testing.T) {
					host := testenv.NewHost(t, 1)
					job := host.Start(1, "--spin", "stream-sync")
					if out, err := testenv.Failing(t, host, "suspend."+step+"="+how, "suspend", "-p", job.Root()); err == nil {
						t.Fatalf("the suspend did not fail:\n%s", out)
					}
					if step == "suspended" && how == "kill" {
						// The suspend was complete, as if it had been killed a moment
						// later.
						if out, err := host.Cucriu("resume", "-p", job.Root()); err != nil {
							t.Fatalf("cucriu resume: %v\n%s", err, out)
						}
					}
					host.WaitOutcome("running")
					job.Runs()
				})
			})
		}
	}
}

// TestAJobRunsOnWhenItsSuspendIsKilledWhileMemoryIsMadeReady by threads of the job.
func TestAJobRunsOnWhenItsSuspendIsKilledWhileMemoryIsMadeReady(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--mib", "20", "--spin", "stream-sync")
		if out, err := testenv.Failing(t, host, "dump.prefault=kill", "suspend", "-p", job.Root()); err == nil {
			t.Fatalf("the suspend did not fail:\n%s", out)
		}
		host.WaitOutcome("running")
		job.Runs()
	})
}

// TestTheSuspendIsKilledWithItsWatcher in the middle of the checkpoint. A resume brings the
// job back from there.
func TestTheSuspendIsKilledWithItsWatcher(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		host.Faults("checkpoint hang")
		job := host.Start(1, "--spin", "event-sync")
		host.HookBin = testenv.Artefact(t, "make build", "bin", "cucriu") // this program is also the watcher
		suspend := host.Command(host.HookBin, "suspend", "-p", job.Root())
		if err := suspend.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "the suspend checkpoints", func() bool { return host.Step() == "checkpoint" })
		host.KillWatcher()
		_ = suspend.Process.Kill()
		_ = suspend.Wait()
		host.Faults()
		testenv.Eventually(t, testenv.Soon, "the job is stopped", job.Stopped)
		if out, err := host.Cucriu("resume", "-p", job.Root()); err != nil {
			t.Fatalf("cucriu resume: %v\n%s", err, out)
		}
		job.Runs()
	})
}

func TestAResumeThatIsKilledIsFinishedOnTheGPUsOfItsMap(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job := host.Start(1, "--gpus", "0", "--spin", "stream-query")
		if out, err := host.Cucriu("suspend", "-p", job.Root()); err != nil {
			t.Fatalf("cucriu suspend: %v\n%s", err, out)
		}
		if out, err := testenv.Failing(t, host, "suspend.resume=error", "resume", "-p", job.Root()); err == nil || !job.Stopped() {
			t.Fatalf("a resume that fails leaves the job suspended: %v\n%s", err, out)
		}
		host.Faults("restore hang")
		resume := host.Command(testenv.Artefact(t, "make build", "bin", "cucriu"), "resume", "-p", job.Root(), "--map", "{from: {index: 0}, to: {index: 1}}")
		if err := resume.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "the resume has its watcher", func() bool { // before that, nobody would finish it
			return host.Step() == "resume" && host.Sessions()[0].Watcher != nil
		})
		time.Sleep(200 * time.Millisecond) // the call is under way
		_ = resume.Process.Kill()
		_ = resume.Wait()
		host.Faults()
		host.WaitOutcome("running")
		job.Runs()
		if got := job.MustStatus(0).GPUs[0].UUID; got != host.UUIDs()[1] {
			t.Fatalf("the job is on %s, want %s", got, host.UUIDs()[1])
		}
	})
}

// TestAResumeThatIsKilledWhileItsWatcherStartsIsFinished: the watcher finds nobody to report to.
func TestAResumeThatIsKilledWhileItsWatcherStartsIsFinished(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		if out, err := host.Cucriu("suspend", "-p", job.Root()); err != nil {
			t.Fatalf("cucriu suspend: %v\n%s", err, out)
		}
		kill := testenv.Script(t, "p=$(awk '/^PPid:/ { print $2 }' /proc/$PPID/status)\nkill -KILL $p && while kill -0 $p; do sleep 0.01; done")
		if out, err := testenv.Failing(t, host, "suspend.watcher=run "+kill, "resume", "-p", job.Root()); testenv.ExitStatus(err) != -1 {
			t.Fatalf("resume was not killed: %v\n%s", err, out)
		}
		host.WaitOutcome("running")
		job.Runs()
	})
}

func TestRanksAreSuspendedTogether(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job := host.Start(2, "--ranks", "2", "--gpus", "0,1")
		pids := []string{strconv.Itoa(job.MustStatus(0).PID), strconv.Itoa(job.MustStatus(1).PID)}
		if out, err := host.Cucriu("suspend", "-p", pids[0], "-p", pids[1]); err != nil {
			t.Fatalf("cucriu suspend: %v\n%s", err, out)
		}
		if out, err := host.Cucriu("resume", "-p", pids[1]); err != nil || !strings.Contains(out, pids[0]) {
			t.Fatalf("cucriu resume of one: %v\n%s", err, out)
		}
		job.Runs()
	})
}

// TestAProcessThatSomethingElseCheckpointedIsLeftAlone: it is not restored blindly, never
// unlocked, and brought back on request.
func TestAProcessThatSomethingElseCheckpointedIsLeftAlone(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1) // the lock holds it at its next kernel
		process := host.Driver().Process(job.PID)
		if err := process.Lock(t.Context(), cudackpt.LockOptions{Timeout: testenv.Soon}); err != nil {
			t.Fatal(err)
		}
		// A thread that had launched before the lock must not synchronize after the checkpoint.
		testenv.Eventually(t, testenv.Soon, "it waits at the lock", func() bool {
			states, err := proc.ThreadStates(job.PID)
			return err == nil && !strings.ContainsAny(states, "RD")
		})
		if err := process.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		job.Signal(unix.SIGSTOP)
		testenv.Eventually(t, testenv.Soon, "it is stopped", job.Stopped)
		if out, err := host.Cucriu("unlock", "-p", job.Root()); err == nil || !strings.Contains(out, "cucriu resume") {
			t.Fatalf("cucriu unlock of a checkpointed process: %v\n%s", err, out)
		}
		if out, err := host.Cucriu("resume", "-p", job.Root()); err == nil || !strings.Contains(out, "--force") || !job.Stopped() {
			t.Fatalf("cucriu resume without knowing what it takes: %v\n%s", err, out)
		}
		if out, err := host.Cucriu("resume", "--force", "-p", job.Root()); err != nil {
			t.Fatalf("cucriu resume: %v\n%s", err, out)
		}
		job.Runs()
	})
}

// TestAResumeWithoutTheRunDirectoryOfItsSuspendSaysSo: the run directory holds what the
// threads need to go on.
func TestAResumeWithoutTheRunDirectoryOfItsSuspendSaysSo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--spin", "stream-sync")
		if out, err := host.Cucriu("suspend", "-p", job.Root()); err != nil {
			t.Fatalf("cucriu suspend: %v\n%s", err, out)
		}
		aside := host.RunDir + ".aside"
		if err := os.Rename(host.RunDir, aside); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"resume"}, {"resume", "--force"}, {"unlock"}, {"lock"}} {
			out, err := host.Cucriu(append(args, "-p", job.Root())...)
			if err == nil || !strings.Contains(out, "run directory") {
				t.Fatalf("cucriu %v: %v\n%s", args, err, out)
			}
		}
		if err := errors.Join(os.RemoveAll(host.RunDir), os.Rename(aside, host.RunDir)); err != nil {
			t.Fatal(err)
		}
		if out, err := host.Cucriu("resume", "-p", job.Root()); err != nil {
			t.Fatalf("cucriu resume: %v\n%s", err, out)
		}
		job.Runs()
	})
}

func TestAResumeThatLacksMemoryChangesNothing(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "256")
		job := host.Start(1, "--mib", "150")
		if out, err := host.Cucriu("suspend", "-p", job.Root()); err != nil {
			t.Fatalf("cucriu suspend: %v\n%s", err, out)
		}
		other := host.Start(1, "--mib", "150")
		if out, err := host.Cucriu("resume", "-p", job.Root()); err == nil || !strings.Contains(out, "MiB free") || !job.Stopped() {
			t.Fatalf("cucriu resume without memory: %v\n%s", err, out)
		}
		other.Kill()
		if out, err := host.Cucriu("resume", "-p", job.Root()); err != nil {
			t.Fatalf("cucriu resume: %v\n%s", err, out)
		}
		job.Runs()
	})
}

// TestAnInterruptedSuspendIsUndone, as after Ctrl-C.
func TestAnInterruptedSuspendIsUndone(t *testing.T) {
	testenv.Parallel(t)
	for _, step := range []string{"lock", "checkpoint"} {
		t.Run(step, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				host.Faults(step + " hang")
				job := host.Start(1)
				suspend, out := host.CucriuCommand("suspend", "-p", job.Root()), new(testenv.Output)
				suspend.Stdout, suspend.Stderr = out, out
				if err := suspend.Start(); err != nil {
					t.Fatal(err)
				}
				testenv.Eventually(t, testenv.Soon, "the suspend is at "+step, func() bool { return host.Step() == step })
				_ = suspend.Process.Signal(unix.SIGINT)
				testenv.Eventually(t, testenv.Soon, "the signal is taken", func() bool { return strings.Contains(out.String(), "cancelling") })
				host.Faults()
				if status := testenv.ExitStatus(suspend.Wait()); status != 128+int(unix.SIGINT) {
					t.Errorf("exit status %d\n%s", status, out)
				}
				host.WaitOutcome("running")
				job.Runs()
			})
		})
	}
}

func TestThreadsThatSynchronizeSurviveASuspend(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nlock: {timeout: 60s}\n")) // a busy machine takes its time to reach the end of what runs
		var jobs []*testenv.Job
		var args []string
		for _, mode := range testenv.SpinModes {
			job := host.Start(1, "--spin", mode, "--threads", "3")
			jobs, args = append(jobs, job), append(args, "-p", job.Root())
		}
		for _, verb := range []string{"suspend", "resume"} {
			if out, err := host.Cucriu(append([]string{verb}, args...)...); err != nil {
				t.Fatalf("cucriu %s: %v\n%s", verb, err, out)
			}
		}
		for _, job := range jobs {
			job.Runs()
		}
	})
}

// TestStatusInsideAnotherPidNamespace shows the process by the pid that the caller sees.
func TestStatusInsideAnotherPidNamespace(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.StartUnder([]string{"unshare", "--pid", "--fork", "--kill-child"}, 1)
		children, err := proc.Children(job.PID)
		if err != nil || len(children) != 1 {
			t.Fatalf("children of unshare: %v %v", children, err)
		}
		if inner := job.MustStatus(0).PID; inner == children[0] {
			t.Fatalf("the job is in no pid namespace of its own: %d", inner)
		}
		out, err := host.Cucriu("status")
		if want := fmt.Sprintf("\n%d ", children[0]); err != nil || !strings.Contains(out, want) || !strings.Contains(out, "running") {
			t.Fatalf("cucriu status: %v\n%s", err, out)
		}
	})
}

func TestOperatorsKeepOffADumpUnderWay(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images, reached, done := t.TempDir(), t.TempDir()+"/reached", t.TempDir()+"/done"
		wait := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" = post-dump ] || exit 0; touch `+reached+`; while ! [ -e `+done+` ]; do sleep 0.05; done`)
		criu := host.CriuCommandScripts("dump", images, []string{wait, host.HookBin}, "-t", job.Root())
		if err := criu.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "criu has dumped", func() bool {
			_, err := os.Stat(reached)
			return err == nil
		})
		for _, verb := range []string{"lock", "suspend", "resume", "unlock"} {
			if out, err := host.Cucriu(verb, "-p", job.Root()); err == nil || !strings.Contains(out, "a dump by criu process") {
				t.Errorf("cucriu %s: %v\n%s", verb, err, out)
			}
		}
		if out, err := host.Cucriu("state", "-p", job.Root()); err != nil || !strings.Contains(out, "unknown") {
			t.Errorf("cucriu state: %v\n%s", err, out)
		}
		if err := os.WriteFile(done, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := criu.Wait(); err != nil {
			t.Fatalf("criu dump: %v", err)
		}
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		host.Restore(images)
		job.Runs()
	})
}
