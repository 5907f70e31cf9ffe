package dump

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// untracedVariable names the file in which [waitUntraced] counts its stops.
const untracedVariable = "CUCRIU_TEST_UNTRACED"

// waitUntraced runs a command as su does: when its child stops, it stops itself, and when
// it is continued, it continues the child.
func waitUntraced(command []string) int {
	file := os.Getenv(untracedVariable)
	os.Unsetenv(untracedVariable)
	cmd := exec.Command(command[0], command[1:]...)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for stops := 1; ; {
		var status unix.WaitStatus
		_, err := unix.Wait4(cmd.Process.Pid, &status, unix.WUNTRACED, nil)
		switch {
		case err == unix.EINTR:
		case err != nil || !status.Stopped():
			return 0
		default:
			_ = os.WriteFile(file, []byte(fmt.Sprint(stops)), 0o600)
			stops++
			_ = unix.Kill(unix.Getpid(), unix.SIGSTOP)
			_ = cmd.Process.Signal(unix.SIGCONT)
		}
	}
}

// untracedJob starts a job below a parent that stops with it, and returns the parent. The
// root of the dump is the job.
func untracedJob(t *testing.T, host *testenv.Host, real bool) (job *testenv.Job, parent int, hasStopped func() bool) {
	t.Helper()
	if real {
		if _, err := exec.LookPath("su"); err != nil {
			t.Skip(err)
		}
		job = host.StartUnder([]string{"su", "-c", `exec "$0" "$@"`, "--", "root"}, 1)
		hasStopped = func() bool { return true } // it cannot be observed
	} else {
		file := filepath.Join(t.TempDir(), "stops")
		other := host.For(t)
		other.Setenv(untracedVariable, file)
		job = other.StartUnder([]string{"/proc/self/exe"}, 1)
		hasStopped = func() bool { _, err := os.Stat(file); return err == nil }
	}
	parent, job.PID = job.PID, job.MustStatus(0).PID
	pid := job.PID
	t.Cleanup(func() { // su has begun a session for it
		_ = unix.Kill(pid, unix.SIGKILL)
		testenv.Eventually(t, testenv.Soon, "the job has ended", func() bool { return !lives(pid) })
	})
	return job, parent, hasStopped
}

func standsStill(t *testing.T, pid int) bool {
	t.Helper()
	states, err := proc.ThreadStates(pid)
	return err == nil && strings.Trim(states, "T") == ""
}

// TestAParentThatStopsWithTheJobGoesOnWithIt in whichever way the job comes back.
func TestAParentThatStopsWithTheJobGoesOnWithIt(t *testing.T) {
	testenv.Parallel(t)
	for _, way := range []struct {
		name string
		do   func(t *testing.T, host *testenv.Host, job *testenv.Job)
	}{
		{"cucriu dump -R", func(t *testing.T, host *testenv.Host, job *testenv.Job) {
			testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", testenv.NewImages(t), "-R", "-j")
		}},
		{"criu dump -R", func(t *testing.T, host *testenv.Host, job *testenv.Job) {
			if run := host.TryDump(job, t.TempDir(), "-R", "-j"); run.Err != nil {
				t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
			}
			host.WaitOutcome("running")
		}},
		{"a dump that fails", func(t *testing.T, host *testenv.Host, job *testenv.Job) {
			if out, err := testenv.Failing(t, host, "dump.release=error", "dump", "-t", job.Root(), "-D", testenv.NewImages(t), "-j"); err == nil {
				t.Fatalf("the dump did not fail:\n%s", out)
			}
		}},
		{"criu is killed", func(t *testing.T, host *testenv.Host, job *testenv.Job) {
			host.UseFailpoint("dump.manifest=kill-criu+kill")
			_ = host.TryDump(job, t.TempDir(), "-j")
			host.WaitOutcome("running")
		}},
		{"all are killed", func(t *testing.T, host *testenv.Host, job *testenv.Job) {
			host.UseFailpoint("dump.manifest=kill-watcher+kill-criu+kill")
			_ = host.TryDump(job, t.TempDir(), "-j")
			if out, err := host.Cucriu("recover"); err != nil {
				t.Fatalf("cucriu recover: %v\n%s", err, out)
			}
		}},
		{"suspended and resumed", func(t *testing.T, host *testenv.Host, job *testenv.Job) {
			testenv.Exits(t, host, 0, "suspend", "-p", job.Root())
			testenv.Exits(t, host, 0, "resume", "-p", job.Root())
		}},
	} {
		for _, real := range []bool{false, true} {
			name := way.name + " like su"
			if real {
				name = way.name + " su"
			}
			t.Run(name, func(t *testing.T) {
				testenv.Isolated(t, func(t *testing.T) {
					host := testenv.NewHost(t, 1)
					job, parent, hasStopped := untracedJob(t, host, real)
					for range 5 { // a parent that gets no CPU meanwhile does not notice a short stop
						way.do(t, host, job)
						job.Runs()
						if standsStill(t, parent) {
							t.Fatal("the parent of the job stands still for ever")
						}
						if hasStopped() {
							return
						}
					}
					t.Error("the parent did not notice the stop: this shows nothing")
				})
			})
		}
	}
}

// TestAParentThatStoppedWithTheJobLearnsOfItsEnd: otherwise it would never reap the job.
func TestAParentThatStoppedWithTheJobLearnsOfItsEnd(t *testing.T) {
	testenv.Parallel(t)
	for _, real := range []bool{false, true} {
		t.Run(fmt.Sprint("su ", real), func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job, parent, _ := untracedJob(t, host, real)
				host.Dump(job, "-j")
				testenv.Eventually(t, testenv.Soon, "the parent ends", func() bool { return job.Gone() && !lives(parent) })
			})
		})
	}
}

func lives(pid int) bool {
	process, err := proc.Open(pid)
	if err != nil {
		return false
	}
	defer process.Close()
	return process.Alive()
}

// TestAnAncestorThatStoodStillBeforeStaysSo, because we did not stop it.
func TestAnAncestorThatStoodStillBeforeStaysSo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job, parent, _ := untracedJob(t, host, false)
		if err := unix.Kill(parent, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "the parent stops", func() bool { return standsStill(t, parent) })
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", testenv.NewImages(t), "-R", "-j")
		job.Runs()
		if !standsStill(t, parent) {
			t.Error("a parent that was stopped before the dump was continued")
		}
	})
}

// slowSu does as su does, and takes its time from the stop of its child to its own: it is dumped on the
// way. It counts no clock: that of its CPU time begins anew when it is restored. What follows it is the command.
var slowSu = []string{"python3", "-c", `import os, signal, sys
child = os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
while os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1]):
    for _ in range(300000): pass
    os.kill(os.getpid(), signal.SIGSTOP)
    os.kill(child, signal.SIGCONT)
`}

// TestAParentInsideTheTreeGoesOnWithTheJob: the parent may stop itself before it is held
// with the rest of the tree. It must not be mistaken for a process that was stopped before.
// Or it is held, and dumped, on its way there.
func TestAParentInsideTheTreeGoesOnWithTheJob(t *testing.T) {
	testenv.Parallel(t)
	for _, restored := range []bool{false, true} {
		for _, slow := range []bool{false, true} {
			t.Run(fmt.Sprintf("restored %v slow %v", restored, slow), func(t *testing.T) {
				testenv.Isolated(t, func(t *testing.T) {
					host := testenv.NewHost(t, 1)
					var job *testenv.Job
					if slow {
						job = host.StartUnder(slowSu, 1)
					} else {
						child, parent, _ := untracedJob(t, host, true)
						job, child.PID = child, parent
					}
					parent := job.PID
					if restored {
						images := host.Dump(job, "-j")
						testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
						host.Restore(images, "-j")
					} else {
						testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", testenv.NewImages(t), "-R", "-j")
					}
					job.Runs()
					testenv.Eventually(t, testenv.Soon, "the parent waits for the job again", func() bool {
						states, err := proc.ThreadStates(parent)
						return err == nil && strings.Trim(states, "S") == ""
					})
				})
			})
		}
	}
}
