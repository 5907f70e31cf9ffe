package dump

import (
	"bufio"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// dumpAndKill begins a dump, stops the watcher in the way that stop does, kills criu and its hook, and
// leaves the job to the watcher.
func dumpAndKill(t *testing.T, host *testenv.Host, job *testenv.Job, stop func(watcher int)) (watcher int) {
	t.Helper()
	host.UseFailpoint("dump.manifest=hang")
	criu := host.CriuCommand("dump", t.TempDir(), "-t", job.Root())
	if err := criu.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testenv.Soon, "the dump gets to its manifest", func() bool { return host.Step() == "manifest" })
	watcher = host.Sessions()[0].Watcher.PID
	stop(watcher)
	host.KillHook(criu.Process.Pid)
	_ = criu.Process.Kill()
	_ = criu.Wait()
	host.Setenv("CUCRIU_FAILPOINT", "")
	if host.LastOutcome() != "" || !job.Stopped() {
		t.Fatalf("nothing is left to recover: outcome %q", host.LastOutcome())
	}
	return watcher
}

// TestRecoverWaitsForAWatcherThatIsDying: a SIGKILL takes its time on a busy machine. Here a debugger
// holds the watcher on its way out.
func TestRecoverWaitsForAWatcherThatIsDying(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		runtime.LockOSThread() // the debugger is a thread
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		watcher := dumpAndKill(t, host, job, func(pid int) {
			if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXIT, 0, 0); errno != 0 {
				t.Fatal(errno)
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			var status unix.WaitStatus
			if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil || !status.Stopped() {
				t.Fatalf("the watcher is not held as it ends: %v %v", status, err)
			}
		})
		recovering := host.CucriuCommand("recover")
		says, err := recovering.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := recovering.Start(); err != nil {
			t.Fatal(err)
		}
		waits, text := false, ""
		for lines := bufio.NewScanner(says); !waits && lines.Scan(); {
			text += lines.Text() + "\n"
			waits = strings.Contains(lines.Text(), "waiting for a killed process to exit") && strings.Contains(lines.Text(), strconv.Itoa(watcher))
		}
		if !waits {
			t.Fatalf("it does not wait for process %d: %v\n%s", watcher, recovering.Wait(), text)
		}
		if err := unix.PtraceDetach(watcher); err != nil {
			t.Fatal(err)
		}
		if err := recovering.Wait(); err != nil {
			t.Fatalf("cucriu recover: %v\n%s", err, text)
		}
		host.WaitOutcome("running")
		job.Runs()
	})
}

// TestRecoverNamesWhoIsAtWork: somebody who has stopped may go on.
func TestRecoverNamesWhoIsAtWork(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		watcher := dumpAndKill(t, host, job, func(pid int) {
			if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			// One that stops later may get the lock of the killed hook first, and keep it.
			testenv.Eventually(t, testenv.Soon, "the watcher is stopped", func() bool {
				states, err := proc.ThreadStates(pid)
				return err == nil && strings.Trim(states, "T") == ""
			})
		})
		name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(watcher), "comm"))
		if err != nil {
			t.Fatal(err)
		}
		out := testenv.Exits(t, host, testenv.StatusNotBack, "recover")
		if want := "process " + strconv.Itoa(watcher) + " (" + strings.TrimSpace(string(name)) + "), which is working on it (step manifest), is stopped: kill -CONT "; !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
		if err := unix.Kill(watcher, unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		host.WaitOutcome("running")
		testenv.Exits(t, host, 0, "recover")
		job.Runs()
	})
}
