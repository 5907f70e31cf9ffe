package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/inside"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// TestAJobThatHasFinishedIsNotStartedAgain by the same command.
func TestAJobThatHasFinishedIsNotStartedAgain(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run("--every", "0")
		w.ticks(3)
		w.finish(r)
		ticks := w.report().Tick
		w.run().ends(0, "has finished")
		if now := w.report().Tick; now != ticks {
			t.Errorf("the job was at tick %d, and is at %d", ticks, now)
		}
		w.nothingLeft()
	})
}

// TestAJobWhoseCheckpointsAreMissingIsNotStartedAnew, and nothing is changed.
func TestAJobWhoseCheckpointsAreMissingIsNotStartedAnew(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		r := w.run()
		w.ticks(3)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		away := filepath.Join(t.TempDir(), "away")
		rename(t, filepath.Join(w.dir, "checkpoints"), away)
		before := tree(t, w.dir)
		says := "is recorded, but " + w.dir + "/checkpoints/000001 is missing: bring it back"
		w.run().ends(125, "checkpoint 000001 of ", says, "first cucriu jobs rm "+w.dir)
		if after := tree(t, w.dir); after != before {
			t.Errorf("%s was\n%s\nand is\n%s", w.dir, before, after)
		}
		if err := os.Mkdir(filepath.Join(w.dir, "checkpoints"), 0o700); err != nil { // as where a disk is not mounted
			t.Fatal(err)
		}
		w.run().ends(125, says)
		if err := os.Remove(filepath.Join(w.dir, "checkpoints")); err != nil {
			t.Fatal(err)
		}
		rename(t, away, filepath.Join(w.dir, "checkpoints"))
		w.finish(w.goesOn("000001"))
		inOrder(t, w)
	})
}

// TestAFileSizeLimitIsTheJobsAlone: that of the command that starts it, and neither that of its checkpoints nor of a
// resume.
func TestAFileSizeLimitIsTheJobsAlone(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newCUDAWorld(t)
		under := func(kind string, blocks int) *run {
			cmd := w.host.CucriuCommand(append([]string{"run", "--dir", w.dir, "--every", "0", "--"}, w.command...)...)
			limited := w.host.Command("/bin/sh", append([]string{"-c", fmt.Sprintf(`ulimit %s -f %d; exec "$@"`, kind, blocks), "sh"}, cmd.Args...)...)
			limited.Env = cmd.Env
			return w.start(limited, nil)
		}
		limitOfJob := func() {
			t.Helper()
			var shown struct {
				PID int `json:"job_pid"`
			}
			if out, err := w.host.Cucriu("jobs", "show", w.dir, "--json"); err != nil || json.Unmarshal([]byte(out), &shown) != nil {
				t.Fatalf("%v: %s", err, out)
			}
			limits, _ := os.ReadFile(fmt.Sprintf("/proc/%d/limits", shown.PID))
			if !strings.Contains(string(limits), "Max file size             1024000000000        unlimited") {
				t.Errorf("the job's limits are\n%s", limits)
			}
		}
		r := under("-S", 2_000_000_000) // of 512 bytes; the simulated GPU is a file, too
		w.ticks(3)
		limitOfJob()
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		if has, err := proc.Capabilities(); err != nil || has&(1<<unix.CAP_SYS_RESOURCE) == 0 { // else no limit stays
			under("", 100).ends(125, "this command may write files of at most 50.0 KiB (ulimit -f), and the checkpoint has ")
		}
		r = under("-S", 100)
		r.says("D resumes from checkpoint 000001")
		w.ticks(1)
		limitOfJob()
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		w.finish(w.goesOn("000002"))
	})
}

// TestTheStatusOfTheJobIsTheStatusOfTheCommand, and a job that has failed may go on.
func TestTheStatusOfTheJobIsTheStatusOfTheCommand(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run()
		r.verified(1)
		w.stop(7)
		r.ends(7, "has ended with exit status 7; the same command resumes from checkpoint")
		w.nothingLeft()
		if err := os.Remove(filepath.Join(w.work, "stop")); err != nil {
			t.Fatal(err)
		}
		r = w.goesOn(w.newest())
		root := rootOf(t, w)
		if err := unix.Kill(root, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		r.ends(128+int(unix.SIGKILL), "was killed by SIGKILL")
		w.nothingLeft()
		w.finish(w.goesOn(w.newest()))
		inOrder(t, w)
	})
}

// TestAJobThatHasDiedUnsupervisedIsResumedAtOnce: the start that finds it dead says how it has ended, and
// need not be repeated.
func TestAJobThatHasDiedUnsupervisedIsResumedAtOnce(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run()
		r.verified(1)
		r.kill()
		if err := unix.Kill(rootOf(t, w), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		w.exited()
		r = w.run()
		r.resumed("")
		r.says("D was killed by SIGKILL while nobody supervised it")
		w.ticks(3)
		r.kill()
		w.stop(7)
		w.exited()
		if err := os.Remove(filepath.Join(w.work, "stop")); err != nil {
			t.Fatal(err)
		}
		r = w.run()
		r.resumed("")
		r.says("D has ended with exit status 7 while nobody supervised it")
		w.finish(r)
		inOrder(t, w)
	})
}

// rootOf returns the pid of the job's root process as the test sees it. The job may run before its
// supervisor has noted which it is.
func rootOf(t *testing.T, w *world) (pid int) {
	t.Helper()
	testenv.Eventually(t, testenv.Soon, "the job has one root", func() bool {
		pids := w.victims(rootKilled)
		pid = append(pids, 0)[0]
		return len(pids) == 1
	})
	return pid
}

const jobInside = inside.Command

// insidePID is the pid of a process in its own pid namespace, 0 if it is gone.
func insidePID(pid int) int {
	status, err := proc.ReadStatus(pid)
	if err != nil {
		return 0
	}
	return status.ImagePID()
}

// isOurs reports whether a process is one of cucriu's own.
func isOurs(pid int) bool {
	switch testenv.ProcessName(pid) {
	case "cucriu", "criu", "unshare", "nsenter":
		return true
	}
	return false
}

// inOrder fails the test unless the job's output has all its lines in order. Those after a
// checkpoint come again after a resume from it: inOrder returns how many.
func inOrder(t *testing.T, w *world) (again int) {
	t.Helper()
	return inOrderIn(t, w, filepath.Join(w.dir, "output.log"))
}

func inOrderIn(t *testing.T, w *world, path string) (again int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before := 0
	for text := range strings.Lines(string(data)) {
		var tick int
		if _, err := fmt.Sscanf(text, "tick %d\n", &tick); err != nil {
			t.Fatalf("output.log has %q", text)
		}
		if tick > before+1 || tick < 1 {
			t.Fatalf("output.log goes from tick %d to %d: lines are lost", before, tick)
		}
		again += before + 1 - tick
		before = tick
	}
	if now := w.report().Tick; before != now {
		t.Fatalf("output.log ends with tick %d, and the job is at %d", before, now)
	}
	return again
}

// TestACommandThatCannotBeStartedLeavesNothing, and may be corrected.
func TestACommandThatCannotBeStartedLeavesNothing(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		right := w.command
		w.command = []string{filepath.Join(w.work, "nothing")}
		w.run().ends(127, "no such file")
		w.nothingLeft()
		w.command = right
		w.finish(w.run())
	})
}

// TestAJobThatHasRunIsNotForgotten although it was killed before its first checkpoint, and cannot be started
// again at first.
func TestAJobThatHasRunIsNotForgotten(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		program := filepath.Join(t.TempDir(), filepath.Base(w.command[0]))
		if err := os.Symlink(w.command[0], program); err != nil {
			t.Fatal(err)
		}
		w.command[0] = program
		r := w.run()
		w.ticks(3)
		r.killsAll()
		rename(t, program, program+".away")
		w.run().ends(127, "no such file")
		if !testenv.Exists(filepath.Join(w.dir, "job.json")) {
			t.Error("the job was forgotten")
		}
		rename(t, program+".away", program)
		w.stop(0)
		w.run().ends(0, "D has ended with exit status 0")
		w.nothingLeft()
	})
}

// TestOneDirectoryHasOneSupervisor and one command.
func TestOneDirectoryHasOneSupervisor(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run("--every", "0")
		r.says("D: ")
		w.run().ends(125, "D already runs here, under cucriu run (process ")
		other := *w
		other.command = []string{"/bin/true"}
		other.run().ends(125, "D already runs here, under cucriu run (process ")
		w.ticks(1)
		r.kill()
		other.run().ends(125, "is the directory of another job")
		w.ticks(1)
		r = w.run()
		r.says("it is supervised again")
		w.finish(r)
	})
}

// TestADirectoryThatOthersCanChangeIsRefused before anything is started.
func TestADirectoryThatOthersCanChangeIsRefused(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		if err := os.Mkdir(w.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		w.run().ends(125, "chmod 700")
		if err := os.Chmod(w.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(w.dir, 1000, 1000); err != nil {
			t.Fatal(err)
		}
		w.run().ends(125, "belongs to user 1000")
		if err := os.Remove(w.dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(w.work, w.dir); err != nil {
			t.Fatal(err)
		}
		w.run().ends(125, "is a symbolic link")
		if err := os.Remove(w.dir); err != nil {
			t.Fatal(err)
		}
		// Who owns the directory above can put another one in its place.
		if err := os.Chown(filepath.Dir(w.dir), 1000, 1000); err != nil {
			t.Fatal(err)
		}
		w.run().ends(125, "belongs to user 1000", "including all parent directories")
		if testenv.Exists(filepath.Join(w.work, "status")) {
			t.Error("the job was started")
		}
		w.nothingLeft()
	})
}

// TestAStagingDirectoryIsCheckedAtTheStart, and not at the first checkpoint.
func TestAStagingDirectoryIsCheckedAtTheStart(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		base := t.TempDir()
		theirs, open, full, good := filepath.Join(base, "theirs"), filepath.Join(base, "open"), filepath.Join(base, "full"), filepath.Join(base, "good")
		for _, dir := range []string{theirs, open, full, good} {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(os.Chown(theirs, 1000, 1000), os.Chmod(open, 0o777)); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", full, "tmpfs", 0, "size=1m"); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Unmount(full, 0) }()
		w.mounts = mounts(t)
		for dir, says := range map[string]string{
			theirs: "belongs to user 1000",
			open:   "can be written by users other than root",
			full:   "is free there",
		} {
			w.run("--stage", dir).ends(125, "--stage "+dir, says)
		}
		if testenv.Exists(filepath.Join(w.work, "status")) {
			t.Fatal("the job was started")
		}
		r := w.run("--stage", good)
		r.verified(1)
		w.finish(r)
		if left := glob(good, "*"); len(left) > 0 {
			t.Errorf("left over: %v", left)
		}
	})
}

// TestAJobIsNotDumpedFromOutsideOfItsSandbox: its mounts and pids are its own.
func TestAJobIsNotDumpedFromOutsideOfItsSandbox(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newCUDAWorld(t)
		r := w.run("--every", "0")
		w.ticks(3)
		root := fmt.Sprint(rootOf(t, w))
		testenv.RefusedAsContainer(t, w.host, root)
		w.ticks(3)
		w.finish(r)
	})
}

// TestAJobEndsWithoutASupervisor: it does not count as running, and can be given up as is said.
func TestAJobEndsWithoutASupervisor(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run()
		r.verified(1)
		name := filepath.Base(w.dir)
		r.kill()
		for _, pid := range testenv.PIDs() {
			if slices.Equal(testenv.CommandLine(pid), w.command) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		var out string
		testenv.Eventually(t, testenv.Soon, "the list says that it has ended", func() bool {
			out, _ = w.host.Cucriu("jobs", "list")
			return strings.Contains(out, "ended, no supervisor")
		})
		testenv.Exits(t, w.host, testenv.StatusRefused, "jobs", "stop", w.dir)
		out = testenv.Exits(t, w.host, testenv.StatusRefused, "jobs", "rm", "--yes", w.dir)
		_, remedy, _ := strings.Cut(out, "to give it up, ")
		remedy, _, _ = strings.Cut(strings.TrimSpace(remedy), ", and ")
		if out, err := exec.Command("sh", "-c", remedy).CombinedOutput(); err != nil || !strings.HasPrefix(remedy,
			"kill -9 ") {
			t.Fatalf("%q: %v %s", remedy, err, out)
		}
		testenv.Eventually(t, testenv.Soon, name+" is removed", func() bool {
			_, err := w.host.Cucriu("jobs", "rm", "--yes", w.dir)
			return err == nil
		})
	})
}

// TestTheRunDirectoryIsRemovedUnderAJob: it runs on, and what is said is true.
func TestTheRunDirectoryIsRemovedUnderAJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run("--every", "0")
		w.ticks(3)
		testenv.Exits(t, w.host, 0, "jobs", "checkpoint", w.dir)
		testenv.Eventually(t, testenv.Soon, "the run directory is gone", func() bool { // its supervisor may be writing there
			return os.RemoveAll(w.host.RunDir) == nil && !testenv.Exists(w.host.RunDir)
		})
		out := testenv.Exits(t, w.host, testenv.StatusRefused, "jobs", "checkpoint", w.dir)
		for _, args := range [][]string{{"jobs", "rm", "--yes", w.dir}, {"run", "--dir", w.dir}} {
			said, err := w.host.Cucriu(args...)
			if _, same, _ := strings.Cut(out, " runs here under "); err == nil || !strings.Contains(said, same) {
				t.Errorf("cucriu %v: %v, %s", args, err, said)
			}
		}
		shown := testenv.Exits(t, w.host, 0, "jobs", "show", w.dir)
		if !strings.Contains(shown, " running ") || strings.Contains(shown, "not running") {
			t.Errorf("it is shown: %s", shown)
		}
		_, remedy, _ := strings.Cut(out, "let it end, or ")
		remedy, _, _ = strings.Cut(remedy, ", and resume")
		if !strings.Contains(out, "runs here under process ") || !strings.HasPrefix(remedy, "kill -TERM ") {
			t.Fatalf("it is said: %s", out)
		}
		w.ticks(3)
		if out, err := exec.Command("sh", "-c", remedy).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v %s", remedy, err, out)
		}
		r.ends(75)
		w.finish(w.run())
	})
}

// TestCheckpointsAreVerifiedOnAReadOnlyFileSystem, as of a backup.
func TestCheckpointsAreVerifiedOnAReadOnlyFileSystem(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run()
		r.verified(1)
		r.signal(unix.SIGTERM)
		r.ends(75)
		err := unix.Mount(w.dir, w.dir, "", unix.MS_BIND, "")
		if err == nil {
			err = unix.Mount("", w.dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
		}
		if err != nil {
			t.Fatal(err)
		}
		out := testenv.Exits(t, w.host, 0, "jobs", "verify", w.dir)
		if err := unix.Unmount(w.dir, 0); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out, "is intact") {
			t.Error(out)
		}
		w.finish(w.run())
	})
}
