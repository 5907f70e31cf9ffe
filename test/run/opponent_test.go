package run

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// TestACopyOfTheDirectoryDoesNotTakeTheJob: a backup, or a clone on the same host.
func TestACopyOfTheDirectoryDoesNotTakeTheJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0", "--probe=off"} // nothing is written while it is copied
		r := w.run()
		w.ticks(3)
		w.checkpoint()
		other := *w
		other.dir = filepath.Join(t.TempDir(), "copy")
		if out, err := exec.Command("cp", "-a", w.dir, other.dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		other.run().ends(125, "was moved or copied")
		// Nor does it where the path is that of the original.
		edit(t, filepath.Join(other.dir, "job.json"), func(r map[string]any) { r["dir"] = other.dir })
		other.run().ends(125, "copy of the directory of a running job")
		w.onlyOnce(t)
		w.ticks(3)
		w.finish(r)
	})
}

// TestNobodyHoldsWhatTheSupervisorInherited: a lock of flock(1), for example.
func TestNobodyHoldsWhatTheSupervisorInherited(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		file := filepath.Join(w.work, "inherited")
		start := func() *run {
			cmd := w.host.CucriuCommand(append(append([]string{"run", "--dir", w.dir}, w.flags...), append([]string{"--"}, w.command...)...)...)
			cmd.ExtraFiles = make([]*os.File, 0)
			for range 5 {
				cmd.ExtraFiles = append(cmd.ExtraFiles, create(t, file))
			}
			return w.start(cmd, nil)
		}
		r := start()
		w.ticks(3)
		free(t, r, file)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		r = start()
		r.resumed("000001")
		free(t, r, file)
		w.finish(r)
	})
}

// free fails the test if anybody but the supervisor has the file open, and keeps it: what the supervisor
// starts has it until it becomes its program.
func free(t *testing.T, r *run, file string) {
	t.Helper()
	var held []string
	for begin := time.Now(); time.Since(begin) < testenv.Soon; time.Sleep(5 * time.Millisecond) {
		held = nil
		for _, pid := range testenv.PIDs() {
			if pid == r.cmd.Process.Pid || pid == os.Getpid() {
				continue
			}
			for _, fd := range glob(fmt.Sprintf("/proc/%d/fd", pid), "*") {
				if path, err := os.Readlink(fd); err == nil && path == file {
					held = append(held, fmt.Sprintf("process %d (%s), descriptor %s", pid, strings.Join(testenv.CommandLine(pid), " "), filepath.Base(fd)))
				}
			}
		}
		if len(held) == 0 {
			return
		}
	}
	t.Errorf("%s is held by %v", file, held)
}

// TestAReaderThatDoesNotReadKeepsNobodyWaiting: the status of a preempted job must be told.
func TestAReaderThatDoesNotReadKeepsNobodyWaiting(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		cmd := w.host.CucriuCommand(append([]string{"run", "--dir", w.dir, "--every", "0", "--"}, w.command...)...)
		cmd.Stdout = testenv.StuckPipe(t)
		r := w.start(cmd, nil)
		w.ticks(5)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		w.noProcesses()
		w.finish(w.goesOn("000001"))
		inOrder(t, w)
	})
}

// TestAWholeCheckpointIsTriedTwice before the one before it is taken. Who restores it is stopped, and then
// killed: nsenter(1) stops itself with it.
func TestAWholeCheckpointIsTriedTwice(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		newest, s, r := w.stopsInside(2)
		w.kills(insideKilled)
		s.goOn()
		r.says("trying again")
		r.resumed(newest)
		w.finish(r)
		inOrder(t, w)
	})
}

// stopsInside resumes a job with so many checkpoints from the newest, and stops who works for the supervisor in the sandbox
// when it has restored the job, and nsenter(1) with it.
func (w *world) stopsInside(checkpoints int) (newest string, s *stop, r *run) {
	w.t.Helper()
	r = w.run()
	r.verified(checkpoints)
	r.killsAll()
	newest = w.newest()
	s = w.stopAt("jobs.restored")
	r = w.runAs(s.host)
	s.await(r)
	inside := w.victims(insideKilled)[0]
	must(w.t, unix.Kill(inside, unix.SIGSTOP))
	status, err := proc.ReadStatus(inside)
	must(w.t, err)
	r.awaits("nsenter is stopped", func() bool { return testenv.ThreadStates(w.t, status.PPID)[status.PPID] == 'T' })
	return newest, s, r
}

// TestWhoIsStoppedWithoutASupervisorDoesNotKeepASandbox from being ended: its parent must reap it.
func TestWhoIsStoppedWithoutASupervisorDoesNotKeepASandbox(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		newest, s, r := w.stopsInside(1)
		r.kill()
		w.kills(insideKilled)
		s.goOn()
		w.finish(w.goesOn(newest))
		inOrder(t, w)
	})
}

// TestADirectoryThatWasMovedIsRefused: criu's images name the old path. Nothing is touched.
func TestADirectoryThatWasMovedIsRefused(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run()
		r.verified(1)
		r.killsAll()
		old := w.dir
		w.dir += "-moved"
		if err := os.Rename(old, w.dir); err != nil {
			t.Fatal(err)
		}
		w.run().ends(125, "can be restored as "+old)
		moved := &world{t: t, host: w.host, dir: old}
		moved.again().ends(125, old+" was moved or removed, or is not mounted: it had the job D (killed): bring it back")
		if kept := glob(w.work, "*.cucriu-*"); len(kept) > 0 {
			t.Errorf("files of the job were changed: %v", kept)
		}
		if err := os.Symlink(w.dir, old); err != nil {
			t.Fatal(err)
		}
		w.finish(w.goesOn(w.newest()))
	})
}

// TestNobodyWhoDoesNotReadHoldsAJob: checkpoints are made, requests are answered, and the job leaves at
// a signal, however much is said.
func TestNobodyWhoDoesNotReadHoldsAJob(t *testing.T) {
	testenv.Parallel(t)
	for name, stuck := range map[string]func(testing.TB) *os.File{"pipe": testenv.StuckPipe, "terminal": testenv.StuckTerminal} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newMixedWorld(t)
				w.host.Setenv("CUCRIU_LOG", "debug")
				end := stuck(t)
				w.mounts = mounts(t)
				cmd := w.host.CucriuCommand(append([]string{"run", "--dir", w.dir, "--every", "1s", "--"}, w.command...)...)
				cmd.Stdout, cmd.Stderr = end, end
				r := w.start(cmd, nil)
				w.ticks(3)
				r.verified(2)
				request := w.host.CucriuCommand("jobs", "checkpoint", w.dir)
				request.Stderr = end
				if out, err := request.Output(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				w.ticks(3)
				w.checks()
				r.signal(unix.SIGTERM)
				r.ends(requeue)
				w.noProcesses()
				w.finish(w.goesOn(w.newest()))
				if again := inOrder(t, w); again != 0 {
					t.Errorf("%d ticks were done twice", again)
				}
			})
		})
	}
}
