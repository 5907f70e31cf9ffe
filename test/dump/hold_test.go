package dump

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// continueAt is an action script that sends SIGCONT to the job at a stage of criu, and then
// waits for it to have an effect.
func continueAt(t *testing.T, job *testenv.Job, stage string) string {
	return testenv.Script(t, fmt.Sprintf(`[ "$CRTOOLS_SCRIPT_ACTION" = %s ] || exit 0; kill -s CONT -- -%d && sleep 0.2`, stage, job.PID))
}

// TestASigcontFromOutsideRunsNothingOfACheckpointedJob: a logout, timeout(1), systemd and
// scancel send SIGCONT. The test sends it at each moment at which neither criu nor the hook
// traces the threads, and at all of them together.
func TestASigcontFromOutsideRunsNothingOfACheckpointedJob(t *testing.T) {
	testenv.Parallel(t)
	for _, test := range []struct {
		name, stage string
		afterHook   bool
	}{
		{"between the hook and criu's seize", "pre-dump", true},
		{"while criu holds it", "post-dump", false},
		{"after the stop at pre-resume", "pre-resume", true},
		{"between criu and the hook", "post-resume", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(1, "--spin", "event-sync", "--threads", "3")
				scripts := []string{host.HookBin, continueAt(t, job, test.stage)} // criu runs the last one first
				if test.afterHook {
					slices.Reverse(scripts)
				}
				images := t.TempDir()
				dump := host.CriuCommandScripts("dump", images, scripts, "-t", job.Root())
				if out, err := dump.CombinedOutput(); err != nil {
					t.Fatalf("criu dump: %v\n%s", err, out)
				}
				testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
				restore := host.CriuCommandScripts("restore", images, scripts, "-d")
				if out, err := restore.CombinedOutput(); err != nil {
					t.Fatalf("criu restore: %v\n%s", err, out)
				}
				job.Runs()
			})
		})
	}
}

// storm sends SIGCONT to the job again and again until it is ended, or the test ends.
func storm(t *testing.T, job *testenv.Job) (end func()) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(20+rand.IntN(60)) * time.Millisecond):
				_ = unix.Kill(-job.PID, unix.SIGCONT)
			}
		}
	}()
	end = sync.OnceFunc(func() {
		close(stop)
		<-done
	})
	t.Cleanup(end)
	return end
}

// TestAJobThatIsContinuedAllTheTimeIsNotLost. criu may fail, because it does not expect a
// SIGCONT while it seizes, but the job is not lost.
func TestAJobThatIsContinuedAllTheTimeIsNotLost(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(2, "--procs", "2", "--spin", "event-sync")
		for range 3 {
			calm := storm(t, job)
			images := filepath.Join(t.TempDir(), "images")
			if out, err := host.Cucriu("dump", "-t", job.Root(), "-D", images); err != nil {
				t.Logf("cucriu dump: %v\n%s", err, out)
				job.Runs()
				calm()
				continue
			}
			testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
			restoreInAStorm(t, host, images, calm)
			job.Runs()
			calm()
		}
	})
}

// TestMemoryThatIsTakenAwayAgainIsFilledInAgain: criu's code in a process, whose criu was killed, may make memory
// inaccessible after it was filled in. The driver cannot restore the process then.
func TestMemoryThatIsTakenAwayAgainIsFilledInAgain(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--spin", "event-sync", "--mib", "8")
		pid := job.MustStatus(0).PID
		once := filepath.Join(t.TempDir(), "once")
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		const text = "mkdir %s 2>/dev/null || exit 0\n%s=%d exec %s"
		script := testenv.Script(t, fmt.Sprintf(text, once, closedVariable, pid, self))
		host.UseFailpoint("dump.post-dump=error,dump.back.filled=run " + script)
		if run := host.TryDump(job, testenv.NewImages(t)); run.Err == nil {
			t.Fatal("the dump has not failed")
		}
		job.Runs()
		job.Check()
		if _, err := os.Stat(once); err != nil {
			t.Error(err)
		}
	})
}

// closedVariable names a stopped process in which [closeMemory] makes memory inaccessible.
const closedVariable = "CUCRIU_TEST_CLOSED"

// closeMemory makes the memory inaccessible that a way back has just filled in: it has asked for huge pages there.
func closeMemory(pid int) error {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return err
	}
	var at proc.Range
	var filled []proc.Range
	for line := range strings.Lines(string(maps)) {
		var start, end uint64
		if n, _ := fmt.Sscanf(line, "%x-%x ", &start, &end); n == 2 {
			at = proc.Range{Start: start, End: end}
		}
		if strings.HasPrefix(line, "VmFlags:") && strings.Contains(line, " hg") && strings.Contains(line, " wr ") {
			filled = append(filled, at)
		}
	}
	if len(filled) == 0 {
		return errors.New("nothing was filled in")
	}
	lent, err := inject.Borrow(context.Background(), pid, []int{pid}, "")
	if err != nil {
		return err
	}
	err = lent.Mprotect(context.Background(), filled, unix.PROT_NONE)
	return errors.Join(err, lent.Return(context.Background()))
}

// restoreInAStorm restores an image whose processes somebody continues meanwhile. criu does
// not expect that either: at times it waits for ever in a futex of its own, and is killed
// here. The image is as it was then, and restores in the calm at the latest.
func restoreInAStorm(t *testing.T, host *testenv.Host, images string, calm func()) {
	t.Helper()
	for try := 1; ; try++ {
		if try == 3 {
			calm()
		}
		cmd := host.CucriuCommand("restore", "-D", images)
		watchdog := time.AfterFunc(time.Minute, func() {
			children, _ := proc.Children(cmd.Process.Pid)
			for _, pid := range children {
				if status, err := proc.ReadStatus(pid); err == nil && status.Name == "criu" {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
			}
		})
		out, err := cmd.CombinedOutput()
		watchdog.Stop()
		if err == nil {
			return
		}
		t.Logf("cucriu restore: %v\n%s", err, out)
		if try == 3 {
			t.FailNow()
		}
	}
}

func TestASuspendedJobStaysHeldWhoeverContinuesIt(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--spin", "event-sync", "--threads", "3")
		if out, err := host.Cucriu("suspend", "-p", job.Root()); err != nil {
			t.Fatalf("cucriu suspend: %v\n%s", err, out)
		}
		ticks := job.Ticks()
		job.Signal(unix.SIGCONT)
		testenv.Eventually(t, testenv.Soon, "it has been continued", func() bool { return !job.Stopped() })
		time.Sleep(200 * time.Millisecond) // time for an effect
		if now := job.Ticks(); !job.Alive() || now[0] != ticks[0] {
			t.Fatalf("alive %v, ticks %v, then %v", job.Alive(), ticks, now)
		}
		if out, err := host.Cucriu("resume", "-p", job.Root()); err != nil {
			t.Fatalf("cucriu resume: %v\n%s", err, out)
		}
		job.Runs()
	})
}

// TestAFailedDumpBringsBackAJobThatIsContinued brings it back all the same.
func TestAFailedDumpBringsBackAJobThatIsContinued(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--spin", "event-sync", "--threads", "3")
		fails := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" != post-dump ]`)
		dump := host.CriuCommandScripts("dump", t.TempDir(), []string{continueAt(t, job, "pre-dump"), host.HookBin, fails}, "-t", job.Root())
		if err := dump.Run(); err == nil {
			t.Fatal("criu dump succeeded although a script failed")
		}
		host.WaitOutcome("running")
		job.Runs()
	})
}

// minder is a parent that ends its worker when the worker makes no more progress, as
// gunicorn does. It counts how often it has looked.
const minder = `
"$@" & worker=$!
status=$3/status looks=$3/looks before= same=0 n=0
while kill -0 $worker 2>/dev/null; do
	sleep 0.05
	n=$((n + 1)); echo $n >$looks.new; mv $looks.new $looks
	now=$(cat $status 2>/dev/null)
	if [ -n "$now" ] && [ "$now" = "$before" ]; then same=$((same + 1)); else same=0; fi
	before=$now
	[ $same -lt 100 ] || kill -9 $worker
done`

func TestAParentThatMindsItsWorkersStandsStillWithThem(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		host.Faults("checkpoint delay 6s", "restore delay 6s") // longer than it waits for progress
		job := host.StartUnder([]string{"/bin/sh", "-c", minder, "sh"}, 1)
		looks := func() string {
			data, err := os.ReadFile(filepath.Join(job.Dirs[0], "looks"))
			if err != nil && !errors.Is(err, os.ErrNotExist) { // it has not looked yet
				t.Fatal(err)
			}
			return strings.TrimSpace(string(data))
		}
		goesOn := func() {
			t.Helper()
			before := looks()
			testenv.Eventually(t, testenv.Soon, "the parent looks", func() bool { return looks() != before })
			job.Runs()
		}
		host.Dump(job, "--leave-running")
		host.WaitOutcome("running")
		goesOn()
		host.Restore(host.Dump(job))
		goesOn()
	})
}

// forker is a parent that forks once when a file exists. It cannot do so while it is
// stopped.
const forker = `"$@" & while :; do [ -z "$done" ] && [ -e "$3/go" ] && { done=1; sleep 1000 & echo $! >"$3/late"; }; done`

func TestAProcessThatIsForkedAfterTheStopStandsStillWithTheOthers(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.StartUnder([]string{"/bin/sh", "-c", forker, "sh"}, 1)
		dir := job.Dirs[0]
		fork := testenv.Script(t, fmt.Sprintf("touch %s/go; kill -CONT %d; until [ -s %s/late ]; do sleep 0.05; done", dir, job.PID, dir))
		host.UseFailpoint("dump.park=run " + fork)
		host.Dump(job, "--leave-running")
		data, err := os.ReadFile(filepath.Join(dir, "late"))
		if err != nil {
			t.Fatal(err)
		}
		held := false
		sessions := host.Sessions()
		for _, other := range sessions[len(sessions)-1].Others {
			held = held || fmt.Sprintln(other.PID) == string(data)
		}
		if !held {
			t.Errorf("process %s, forked after the stop, ran while the job was checkpointed", strings.TrimSpace(string(data)))
		}
		host.WaitOutcome("running")
		job.Runs()
	})
}

// TestARestoreWhoseHookIsCutOffComesBackAlthoughSomebodyContinuesIt: criu lives on with the
// job, so the watcher must tell from the processes that it has to act.
func TestARestoreWhoseHookIsCutOffComesBackAlthoughSomebodyContinuesIt(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--spin", "event-sync", "--threads", "3")
		images := host.Dump(job)
		reached := filepath.Join(t.TempDir(), "post-resume")
		cutOff := testenv.Script(t, fmt.Sprintf(`[ "$CRTOOLS_SCRIPT_ACTION" = post-resume ] || exec %s; touch %s`, host.HookBin, reached))
		criu := host.CriuCommandScripts("restore", images, []string{cutOff})
		if err := criu.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "criu has let go of the job", func() bool {
			// The watcher may have been faster than this look.
			return testenv.Exists(reached) && (job.Stopped() || host.LastOutcome() == "running")
		})
		job.Signal(unix.SIGCONT)
		testenv.Eventually(t, testenv.Soon, "the watcher has completed the restore", func() bool { return host.LastOutcome() == "running" })
		job.Runs()
		job.Kill()
		_ = criu.Wait()
	})
}

// TestAProcessThatIsBornBeforeTheParkGetsItsSettingsBack: a stop does not hold a process, so one that somebody
// continues makes another after the tree was looked at.
func TestAProcessThatIsBornBeforeTheParkGetsItsSettingsBack(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		dir := t.TempDir()
		const child = `echo 0x77 >/proc/self/coredump_filter
echo $$ >$0/born.new; mv $0/born.new $0/born; exec sleep 1000000`
		parent := `trap '[ ! -e $0/go ] || { rm $0/go; sh -c "$child" $0 & }' CONT; "$@" & while :; do wait; done`
		host.Setenv("child", child)
		job := host.StartUnder([]string{"/bin/sh", "-c", parent, dir}, 1)
		host.UseFailpoint("dump.park=run " + testenv.Script(t, fmt.Sprintf(
			`touch %[1]s/go; kill -CONT %[2]d; while [ ! -e %[1]s/born ]; do sleep 0.01; done; kill -STOP %[2]d`, dir, job.PID)))
		images := host.Dump(job)
		host.UseFailpoint("")
		host.Restore(images)
		job.Runs()
		filter := fmt.Sprintf("/proc/%d/coredump_filter", testenv.ReadPID(filepath.Join(dir, "born")))
		if text, err := os.ReadFile(filter); err != nil || strings.TrimSpace(string(text)) != "00000077" {
			t.Errorf("the process that was born late has the filter %q (%v)", text, err)
		}
	})
}
