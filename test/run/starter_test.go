package run

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// started is a cucriu run and its job.
type started struct {
	*testenv.Job
	starter *exec.Cmd
	stderr  *bytes.Buffer
}

// startRun starts a job of one CUDA process with cucriu run.
func startRun(t *testing.T, host *testenv.Host, parent []string, args ...string) *started {
	t.Helper()
	return startRunTo(t, host, nil, parent, args...)
}

// startRunTo is startRun with a file for the output of both; nil for a buffer.
func startRunTo(t *testing.T, host *testenv.Host, log *os.File, parent []string, args ...string) *started {
	t.Helper()
	s := &started{stderr: new(bytes.Buffer)}
	file := filepath.Join(t.TempDir(), "pid")
	s.Job = host.StartWith(func(command []string) int {
		s.starter = host.CucriuCommand(append([]string{"run", "--no-checkpoints", "--pidfile", file, "--"}, command...)...)
		s.starter.Stderr = s.stderr
		if log != nil {
			s.starter.Stdout, s.starter.Stderr = log, log
		}
		if err := s.starter.Start(); err != nil {
			t.Fatal(err)
		}
		pid := 0
		testenv.Eventually(t, testenv.Soon, "the job's pid is in the file", func() bool {
			pid = testenv.ReadPID(file)
			return pid != 0
		})
		return pid
	}, parent, 1, args...)
	t.Cleanup(func() {
		_ = s.starter.Process.Kill()
		s.Kill() // what still ends may write into a folder that is removed next
	})
	return s
}

// ends waits for the starter and fails the test unless it ends with the status and says this.
func (s *started) ends(t *testing.T, status int, says string) {
	t.Helper()
	_ = s.starter.Wait()
	if code := s.starter.ProcessState.ExitCode(); code != status || !strings.Contains(s.stderr.String(), says) {
		t.Errorf("cucriu run: exit status %d, want %d; want %q in\n%s", code, status, says, s.stderr)
	}
}

// TestAJobThatWouldUseAnIOUringIsDumpedUnderRun, and refused without. Its filter comes back
// with it.
func TestAJobThatWouldUseAnIOUringIsDumpedUnderRun(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		plain := host.Start(1, "--io-uring")
		found := testenv.Refused(t, host, plain, preflight.FindingIOURing, t.TempDir())
		if !strings.Contains(found.Remedy, "cucriu run --no-checkpoints") {
			t.Errorf("the remedy is not cucriu run: %v", found)
		}

		job := startRun(t, host, nil, "--io-uring")
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		job.ends(t, 128+int(unix.SIGKILL), "cucriu restore -D "+images)
		if line := "the job has pid " + job.Root(); !strings.Contains(job.stderr.String(), line) {
			t.Errorf("no %q:\n%s", line, job.stderr)
		}
		testenv.Exits(t, host, 0, "restore", "-D", images)
		job.Runs()
		if status, err := proc.ReadStatus(job.PID); err != nil || !status.Seccomp {
			t.Fatalf("the restored job has no filter: %+v %v", status, err)
		}
		again := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", again)
		testenv.Eventually(t, testenv.Soon, "the job is gone", job.Gone)
		testenv.Exits(t, host, 0, "restore", "-D", again)
		job.Runs()
		plain.Runs()
	})
}

// TestProcessesUnderAFilterAreParked, those that do not use CUDA as well: a SIGCONT after
// the hook's part of a dump runs nothing of the job.
func TestProcessesUnderAFilterAreParked(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		file, before := filepath.Join(t.TempDir(), "written"), testenv.PIDs()
		job := startRun(t, host, []string{"/bin/sh", "-c", `(while :; do printf . ; sleep 0.01; done >"$0") & exec "$@"`, file},
			"--spin", "event-sync", "--threads", "3")
		still := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" = pre-dump ] || exit 0
			kill -s CONT -- -`+job.Root()+` || exit 1; sleep 0.2; before=$(wc -c <`+file+`); sleep 0.3; [ $before = $(wc -c <`+file+`) ]`)
		images := t.TempDir()
		dump := host.CriuCommandScripts("dump", images, []string{still, host.HookBin}, "-t", job.Root(), "--shell-job") // criu runs the last one first
		if out, err := dump.CombinedOutput(); err != nil {
			t.Fatalf("a process of the job ran while its GPU state was out: %v\n%s", err, out)
		}
		host.WaitOutcome("dumped")
		_ = job.starter.Wait()
		testenv.Eventually(t, testenv.Soon, "the pids of the job are free", func() bool { return slices.Equal(testenv.PIDs(), before) })
		host.Restore(images, "--shell-job")
		job.Runs()
	})
}

// TestTheStarterPassesSignalsOn, and ends as its job does.
func TestTheStarterPassesSignalsOn(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := startRun(t, host, nil)
		signal := func(s unix.Signal) {
			if err := job.starter.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
		}
		signal(unix.SIGTSTP)
		testenv.Eventually(t, testenv.Soon, "the job is stopped", job.Stopped)
		starter := testenv.JobOf(t, job.starter.Process.Pid)
		testenv.Eventually(t, testenv.Soon, "the starter is stopped", starter.Stopped)
		signal(unix.SIGCONT)
		job.Runs()
		signal(unix.SIGTERM)
		job.ends(t, 128+int(unix.SIGTERM), "")
		if !job.Gone() {
			t.Errorf("process %s is still there", strconv.Itoa(job.PID))
		}
	})
}

// TestAJobUnderRunIsRestoredWithTheLogOfBoth: cucriu run writes nothing to it after the dump.
func TestAJobUnderRunIsRestoredWithTheLogOfBoth(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		path := filepath.Join(t.TempDir(), "log")
		log, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		job := startRunTo(t, host, log, nil)
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		_ = job.starter.Wait()
		said, err := os.ReadFile(path)
		if why := "a dump that ends it is not reported in this file"; err != nil || !strings.Contains(string(said), why) {
			t.Errorf("%v; no %q in %s", err, why, said)
		}
		testenv.Exits(t, host, 0, "restore", "-D", images)
		job.Runs()
	})
}
