// Package container tests the hook under a container runtime. Debian's runc checkpoints and
// restores containers on simulated hosts. runc and criu learn of the hook only from an
// action-script line in runc's configuration file for criu.
package container

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.Main(m)
}

// onBoth runs a test with cgroup v1 and with cgroup v2.
func onBoth(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	testenv.Parallel(t)
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprintf("cgroup-v%d", version), func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				testenv.MountCgroups(t, version)
				test(t)
			})
		})
	}
}

// withAndWithoutPause runs a test with cgroup v1 and v2, each in two ways: like Podman,
// which checkpoints a running container, and like containerd and CRI-O, which pause it
// first.
func withAndWithoutPause(t *testing.T, test func(t *testing.T, paused bool)) {
	t.Helper()
	testenv.Parallel(t)
	for name, paused := range map[string]bool{"running": false, "paused": true} {
		t.Run(name, func(t *testing.T) { onBoth(t, func(t *testing.T) { test(t, paused) }) })
	}
}

func pauseIf(container *testenv.Container, paused bool) {
	if paused {
		container.Pause()
	}
}

// wantAsFound fails the test unless the container is as it was before its checkpoint, and
// runs once the engine has resumed it.
func wantAsFound(t *testing.T, container *testenv.Container, paused bool) {
	t.Helper()
	if paused {
		wantPaused(t, container)
		container.Resume()
	}
	container.Runs()
	if state := container.State(); state != "running" {
		t.Fatalf("runc calls the container %s", state)
	}
}

// wantPaused watches the container for a while: whatever happens, it must stay paused until
// the engine resumes it.
func wantPaused(t *testing.T, container *testenv.Container) {
	t.Helper()
	ticks := container.Ticks()
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		if state := container.State(); state != "paused" {
			t.Fatalf("the container was paused before its checkpoint, and is %s after it", state)
		}
	}
	if now := container.Ticks(); !slices.Equal(now, ticks) {
		t.Fatalf("the paused container went on from %v to %v", ticks, now)
	}
}

func TestTwoGPUsOfThreeAreSwapped(t *testing.T) {
	withAndWithoutPause(t, func(t *testing.T, paused bool) {
		host := testenv.NewHost(t, 3)
		container := host.StartContainer([]int{0, 2}, 1, "--gpus", "0,1", "--spin", "stream-sync")
		before := container.Ticks()[0]
		pauseIf(container, paused)
		container.Checkpoint()
		container.Delete() // criu does not wait for its end, and runc keeps the name of what has not ended
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\ngpus: {map: [{from: {index: 0}, to: {index: 1}}, {from: {index: 1}, to: {index: 0}}]}\n"))
		container.Restore()
		wantAsFound(t, container, false)
		status := container.MustStatus(0)
		if status.Tick <= before {
			t.Fatalf("the counter was %d before and is %d after", before, status.Tick)
		}
		var on []int
		for _, gpu := range status.GPUs {
			on = append(on, slices.Index(host.UUIDs(), gpu.UUID))
		}
		if !slices.Equal(on, []int{2, 0}) {
			t.Fatalf("the job was on GPUs 0 and 2 of the host, and is on %v", on)
		}
	})
}

// TestAMapThatTheContainerCannotMeetIsRefusedBeforeItRuns: the host has the GPU, the container does not show it.
func TestAMapThatTheContainerCannotMeetIsRefusedBeforeItRuns(t *testing.T) {
	onBoth(t, func(t *testing.T) {
		host := testenv.NewHost(t, 3)
		container := host.StartContainer([]int{0, 2}, 1, "--gpus", "0,1")
		container.Checkpoint()
		container.Delete()
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\ngpus: {map: [{from: {index: 0}, to: {index: 2}}]}\n"))
		run := container.TryRestore()
		for _, words := range []string{"cucriu gpus lists 2 GPUs", "Aborting restore due to post-restore script"} {
			if run.Err == nil || !strings.Contains(run.Log, words) {
				t.Errorf("%v, and nothing of %q:\n%s", run.Err, words, run.Log)
			}
		}
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\n"))
		container.Restore()
		wantAsFound(t, container, false)
	})
}

func TestAContainerOfSeveralProcessesIsRestored(t *testing.T) {
	withAndWithoutPause(t, func(t *testing.T, paused bool) {
		host := testenv.NewHost(t, 1)
		container := host.StartContainer([]int{0}, 3, "--procs", "3", "--threads", "2")
		pauseIf(container, paused)
		container.Checkpoint()
		container.Delete()
		out, err := host.Cucriu("run", "--dir", filepath.Join(t.TempDir(), "D"), "--image", container.Images())
		if err == nil || !strings.Contains(out, "namespace") || !strings.Contains(out, "runc restore") {
			t.Errorf("a job from the image of a container: %v\n%s", err, out)
		}
		container.Restore()
		wantAsFound(t, container, false)
	})
}

func TestAContainerThatIsLeftRunningHasAnImageThatRestores(t *testing.T) {
	withAndWithoutPause(t, func(t *testing.T, paused bool) {
		host := testenv.NewHost(t, 1)
		container := host.StartContainer([]int{0}, 2, "--procs", "2", "--spin", "event-sync")
		for again := true; again; again = container.CaughtWriting() {
			pauseIf(container, paused)
			container.Checkpoint("--leave-running")
			wantAsFound(t, container, paused)
			host.WaitOutcome("running")
		}
		container.Delete()
		container.Restore()
		wantAsFound(t, container, false)
	})
}

// TestAContainerThatIsResumedAtOnceRunsOn does what containerd and CRI-O do.
func TestAContainerThatIsResumedAtOnceRunsOn(t *testing.T) {
	onBoth(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		container := host.StartContainer([]int{0}, 1, "--spin", "stream-sync")
		for range 3 {
			container.Pause()
			container.Checkpoint("--leave-running")
			container.Resume()
			container.Runs()
		}
	})
}

func TestAPausedContainerIsCheckpointedTwice(t *testing.T) {
	onBoth(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		container := host.StartContainer([]int{0}, 1)
		container.Pause()
		container.Checkpoint("--leave-running")
		container.Checkpoint("--leave-running")
		wantAsFound(t, container, true)
	})
}

func TestAPausedContainerStaysPausedIfTheHookFails(t *testing.T) {
	testenv.Parallel(t)
	for _, failpoint := range []string{"dump.checkpoint=error", "dump.lock=kill", "dump.manifest=kill"} {
		t.Run(failpoint, func(t *testing.T) {
			onBoth(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				host.UseFailpoint(failpoint)
				container := host.StartContainer([]int{0}, 2, "--procs", "2", "--spin", "stream-sync")
				container.Pause()
				if run := container.TryCheckpoint(); run.Err == nil {
					t.Fatal("the checkpoint succeeded")
				}
				// If the hook was killed, the watcher has to take over.
				testenv.Eventually(t, testenv.Soon, "the container is paused", func() bool { return container.State() == "paused" })
				wantAsFound(t, container, true)
				host.WaitOutcome("running")
			})
		})
	}
}

// The watcher may get a CPU only after the engine has resumed the container. It must not freeze it again then: nobody
// would know that it is paused.
func TestASlowWatcherDoesNotPauseAContainerThatWasResumed(t *testing.T) {
	onBoth(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		signalWatcher := func(name string) string { return testenv.Script(t, "pkill -"+name+" -f 'cucriu-hook watch '") }
		// A thread of it that stops later may get the lock of the killed hook first, and keep it.
		stopWatcher := testenv.Script(t, signalWatcher("STOP")+`
for pid in $(pgrep -f 'cucriu-hook watch '); do
	while cat /proc/$pid/task/*/status | grep '^State:' | grep -qv 'T (stopped)'; do sleep 0.05; done
done`)
		host.UseFailpoint("dump.manifest=run " + stopWatcher + "+kill")
		container := host.StartContainer([]int{0}, 1)
		container.Pause()
		if run := container.TryCheckpoint(); run.Err == nil {
			t.Fatal("the checkpoint succeeded")
		}
		wantPaused(t, container)
		container.Resume()
		if out, err := exec.Command(signalWatcher("CONT")).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		container.Runs()
		host.WaitOutcome("running")
	})
}

func TestTheContainerIsPutBackAsFoundIfCriuFails(t *testing.T) {
	for _, stage := range []string{"network-lock", "post-dump"} {
		t.Run(stage, func(t *testing.T) {
			withAndWithoutPause(t, func(t *testing.T, paused bool) {
				host := testenv.NewHost(t, 1)
				container := host.StartContainer([]int{0}, 2, "--procs", "2", "--spin", "stream-sync")
				container.Configure("action-script " + testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" != `+stage+` ]`))
				pauseIf(container, paused)
				if run := container.TryCheckpoint(); run.Err == nil {
					t.Fatal("the checkpoint succeeded")
				}
				if paused { // the watcher may put the pause back after criu has ended
					testenv.Eventually(t, testenv.Soon, "the container is paused", func() bool { return container.State() == "paused" })
				}
				wantAsFound(t, container, paused)
				host.WaitOutcome("running")
			})
		})
	}
}

func TestRecoverLeavesAPausedContainerPaused(t *testing.T) {
	onBoth(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		container := host.StartContainer([]int{0}, 1, "--spin", "stream-sync")
		container.Pause()
		container.Checkpoint("--leave-running")
		host.KillWatcher()
		out, err := host.Cucriu("recover")
		if err != nil || !strings.Contains(out, "running") {
			t.Fatalf("cucriu recover: %v\n%s", err, out)
		}
		wantAsFound(t, container, true)
	})
}

// TestTheEngineSeesThatTheGPUStateDidNotComeBack: Podman removes the checkpoint of a container
// that criu says it has restored. One that is left for inspection must not end with the engine's
// failure.
func TestTheEngineSeesThatTheGPUStateDidNotComeBack(t *testing.T) {
	onBoth(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		container := host.StartContainer([]int{0}, 1)
		container.Checkpoint()
		container.Delete()
		host.Faults("restore return 999")
		run := container.TryRestore()
		if run.Err == nil || !strings.Contains(run.Log, "Error (cucriu-hook): ") {
			t.Fatalf("runc has restored it, or does not show why not: %v\n%s", run.Err, run.Lines())
		}
		testenv.Eventually(t, testenv.Soon, "the container is gone", container.Gone)
		container.Delete()
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nrestore: {on_failure: leave}\n"))
		container.Restore()
		if got := host.RestoreOutcome(); got != "left" {
			t.Errorf("the outcome is %q", got)
		}
		host.Faults()
		container.Delete()
		container.Restore()
		wantAsFound(t, container, false)
	})
}

// TestAHookThatIsNamedTwiceDoesItsWorkOnce: criu before 4.2 reads runc.conf twice, and
// calls the hook twice at each stage.
func TestAHookThatIsNamedTwiceDoesItsWorkOnce(t *testing.T) {
	withAndWithoutPause(t, func(t *testing.T, paused bool) {
		host := testenv.NewHost(t, 1)
		container := host.StartContainer([]int{0}, 1, "--spin", "stream-sync")
		container.Configure("action-script " + host.HookBin)
		for again := true; again; again = container.CaughtWriting() {
			pauseIf(container, paused)
			container.Checkpoint("--leave-running")
			wantAsFound(t, container, paused)
		}
		pauseIf(container, paused)
		container.Checkpoint()
		container.Delete()
		container.Restore()
		wantAsFound(t, container, false)
	})
}

// TestARestoreThatFailsLeavesOtherContainersAlone: about a root process that a killed criu
// has left behind, we know only that it executes criu and is the first process of a pid
// namespace. Other processes are so, too.
func TestARestoreThatFailsLeavesOtherContainersAlone(t *testing.T) {
	onBoth(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		container := host.StartContainer([]int{0}, 1)
		container.Checkpoint()
		container.Delete()
		// Between the fork of the root and the first stage at which criu names it. Criu
		// before 4.2 calls the script twice, the second time with the mark of what is its.
		// The name of a socket has 107 characters at most.
		container.Configure("action-script " + testenv.Script(t, fmt.Sprintf(`case $CRTOOLS_SCRIPT_ACTION in
pre-restore) if mkdir %[2]s; then cd %[2]s; setsid unshare --pid --fork --mount-proc %[1]s service --address socket </dev/null >/dev/null 2>&1 & fi ;;
setup-namespaces) until [ -e %[2]s/socket ]; do sleep 0.05; done; kill -9 $PPID ;;
esac`, testenv.Criu(t), filepath.Join(t.TempDir(), "other"))))
		other := func() []int {
			found, err := proc.All()
			if err != nil {
				t.Fatal(err)
			}
			return slices.DeleteFunc(found, func(pid int) bool {
				cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				status, statusErr := proc.ReadStatus(pid)
				return err != nil || statusErr != nil || len(status.NSPID) != 2 || status.ImagePID() != 1 || !strings.Contains(string(cmdline), "service\x00--address")
			})
		}
		if run := container.TryRestore(); run.Err == nil {
			t.Fatal("runc restored with a criu that was killed")
		}
		testenv.Eventually(t, testenv.Soon, "the restore is taken to an end", func() bool { return host.RestoreOutcome() != "" })
		if got := other(); len(got) != 1 {
			t.Fatalf("%d processes of another restore live, want 1; the session says: %s", len(got), host.Sessions()[1].Message)
		}
		for _, pid := range other() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		container.Delete()
		container.Configure("")
		container.Restore()
		container.Runs()
	})
}

// TestAContainerIsNotDumpedBesideItsEngine, which alone knows its mounts.
func TestAContainerIsNotDumpedBesideItsEngine(t *testing.T) {
	onBoth(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		container := host.StartContainer([]int{0}, 1)
		testenv.RefusedAsContainer(t, host, container.Root())
		container.Runs()
	})
}
