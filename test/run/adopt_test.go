package run

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// startsItself starts the job of a world as a shell on a terminal does in the background. ended tells how the
// job has ended, as a shell tells it.
func (w *world) startsItself() (pid int, ended chan int) {
	w.t.Helper()
	if err := unix.Mount("tmpfs", "/dev/shm", "tmpfs", 0, ""); err != nil { // jobs of other tests have the same pids
		w.t.Fatal(err)
	}
	w.mounts = mounts(w.t)
	file := filepath.Join(w.t.TempDir(), "pid")
	cmd := w.host.Command("sh", append([]string{"-c", `"$@" 3<&- & echo $! >` + file + `; wait $!`, "sh"}, w.command...)...)
	cmd.Stdout = create(w.t, filepath.Join(w.work, "output"))
	cmd.Stderr = cmd.Stdout
	_, terminal := testenv.NewTerminal(w.t)
	cmd.ExtraFiles = []*os.File{terminal}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 3}
	cmd.Cancel = func() error { return nil }
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	ended = make(chan int, 1)
	go func() {
		_ = cmd.Wait()
		ended <- cmd.ProcessState.ExitCode()
	}()
	testenv.Eventually(w.t, testenv.Soon, "the job is started", func() bool {
		pid = testenv.ReadPID(file)
		return slices.Equal(testenv.CommandLine(pid), w.command) // before, it is a shell that has the terminal
	})
	w.t.Cleanup(func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	return pid, ended
}

// adopts starts a supervisor for a job that runs.
func (w *world) adopts(pid int, flags ...string) *run {
	w.t.Helper()
	args := append(append([]string{"run", "--dir", w.dir}, w.flags...), "--adopt", strconv.Itoa(pid))
	return w.start(w.host.CucriuCommand(append(args, flags...)...), slices.Concat(w.flags, flags))
}

// TestAJobIsAdopted as it runs, and goes on in a place from its checkpoint, with all its processes,
// its GPU and its files.
func TestAJobIsAdopted(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		pid, ended := w.startsItself()
		w.ticks(5)
		r := w.adopts(pid)
		r.says("D: process " + strconv.Itoa(pid) + " is now supervised")
		r.verified(2)
		w.ticks(5)
		r.kill()
		w.ticks(5)
		r = w.adopts(pid, "--every", "0") // the kill before may have left an image that becomes a checkpoint now
		r.says("it is supervised again")
		w.checkpoint()

		// It is killed, with everything that belongs to it.
		r.kill()
		job, err := proc.Tree(pid)
		if err != nil {
			t.Fatal(err)
		}
		for _, victim := range append(w.victims(keeperKilled), job...) {
			_ = unix.Kill(victim, unix.SIGKILL)
		}
		<-ended
		newest := w.newest()
		r = w.adopts(pid)
		r.resumed(newest)
		w.checks()
		r.verified(1)

		// From now on it is as any other.
		r.signal(unix.SIGTERM)
		r.ends(75)
		w.nothingLeft()
		r = w.adopts(pid)
		r.resumed(w.newest())
		w.checks()
		w.finish(r)
		inOrderIn(t, w, filepath.Join(w.work, "output"))
	})
}

// TestWhatAnAdoptedJobHasLeftIsNoSecondCopy: nothing ends its other processes when its root process is killed.
func TestWhatAnAdoptedJobHasLeftIsNoSecondCopy(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newCUDAWorld(t)
		w.command = []string{"sh", "-c", `trap "" HUP; "$@" & wait $!; exit 5`, "sh", w.command[0], "--dir", w.cuda, "--mib", "1"}
		w.flags = []string{"--every", "0", "--probe=off"} // a trial would be a second one
		pid, ended := w.startsItself()
		w.ticks(3)
		r := w.adopts(pid)
		r.says("is now supervised")
		w.checkpoint()
		_ = unix.Kill(pid, unix.SIGKILL)
		<-ended
		<-r.done
		left := testenv.Running("cudawork")
		if len(left) != 1 {
			t.Fatalf("processes %v", left)
		}
		w.adopts(pid).ends(125, fmt.Sprintf("its processes %d have not, and would run twice: end them first: kill %d", left[0], left[0]))
		_ = unix.Kill(left[0], unix.SIGKILL)
		testenv.Eventually(t, testenv.Soon, "it is ended", func() bool { return len(testenv.Running("cudawork")) == 0 })
		r = w.adopts(pid)
		r.resumed(w.newest())
		if out, err := w.host.Cucriu("jobs", "stop", w.dir); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// TestWhatLeavesAnAdoptedJob because its parent ends: what had left before a checkpoint is named, and no part of it; what
// began and left after it would run twice.
func TestWhatLeavesAnAdoptedJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, pid := leavesAfterACheckpoint(t, `(sleep 3001 &)`, "")
		w.flags = nil
		w.adopts(pid).resumed(w.newest()) // the other one is no second copy
		if out, err := w.host.Cucriu("jobs", "stop", w.dir); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		_ = unix.Kill(testenv.Running("sleep")[0], unix.SIGKILL)
	})
}

// TestWhatLeavesTheSessionOfAnAdoptedJob stays in its control group.
func TestWhatLeavesTheSessionOfAnAdoptedJob(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		testenv.MountCgroups(t, 2)
		group, err := os.MkdirTemp("/sys/fs/cgroup", "cucriu-test-")
		must(t, err)
		t.Cleanup(func() {
			testenv.Eventually(t, testenv.Soon, "the group can be removed", func() bool { return os.Remove(group) == nil })
		})
		leavesAfterACheckpoint(t, "echo $$ >"+group+"/cgroup.procs", "setsid")
	})
}

// leavesAfterACheckpoint has a process begin, by another program, after the checkpoint of an adopted job, and outlive it: it
// prevents a resume until it has ended.
func leavesAfterACheckpoint(t *testing.T, before, by string) (w *world, pid int) {
	t.Helper()
	w = newCUDAWorld(t)
	w.flags = []string{"--every", "0", "--probe=off"}
	script := `trap "" HUP; exec </dev/null; ` + before + `; (until [ -e go ]; do sleep 0.1; done; ` + by + ` sleep 3002 &) & true & exec "$@"`
	cmd := w.host.Command("sh", append([]string{"-c", script, "sh"}, w.command...)...)
	cmd.Dir, cmd.SysProcAttr = w.work, &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout = create(t, filepath.Join(w.work, "output"))
	must(t, cmd.Start())
	w.ticks(3)
	r := w.adopts(cmd.Process.Pid)
	r.says("is now supervised")
	w.checkpoint()
	if leaves := strings.Contains(r.said(), "has left the tree of process"); leaves != (by == "") {
		t.Errorf("it says that a process has left: %v\n%s", leaves, r.said())
	}
	testenv.WriteFile(t, filepath.Join(w.work, "go"), "")
	var late int
	r.awaits("its process has started another one", func() bool {
		for _, pid := range testenv.Running("sleep") {
			if slices.Equal(testenv.CommandLine(pid), []string{"sleep", "3002"}) {
				late = pid
			}
		}
		return late != 0
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	<-r.done
	w.adopts(cmd.Process.Pid).ends(125, fmt.Sprintf("its processes %d have not, and would run twice", late))
	_ = unix.Kill(late, unix.SIGKILL)
	return w, cmd.Process.Pid
}

// TestAnAdoptedJobLeavesAtAPreemption with a last checkpoint.
func TestAnAdoptedJobLeavesAtAPreemption(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		pid, ended := w.startsItself()
		w.ticks(3)
		w.flags = []string{"--every", "0"}
		r := w.adopts(pid)
		r.says("is now supervised")
		r.signal(unix.SIGTERM)
		r.ends(75, "the same command resumes from checkpoint 000001")
		<-ended
		w.nothingLeft()
		r = w.adopts(pid)
		r.resumed("000001")
		w.finish(r)
		inOrderIn(t, w, filepath.Join(w.work, "output"))
	})
}

// TestAnAdoptedJobIsNotEndedWithoutACheckpoint: nobody here could start it again.
func TestAnAdoptedJobIsNotEndedWithoutACheckpoint(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		w.command = []string{"sh", "-c", `cd "$0"; until [ -e grow ]; do sleep 0.1; done; head -c 2000000 /dev/zero >big; exec 3<>big; : >grown; until [ -e stop ]; do sleep 0.1; done`, w.work}
		pid, ended := w.startsItself()
		w.flags = []string{"--every", "0", "--files-limit", "1M"}
		r := w.adopts(pid)
		r.says("is now supervised")
		testenv.WriteFile(t, filepath.Join(w.work, "grow"), "")
		r.awaits("the job has a large file open", func() bool { return testenv.Exists(filepath.Join(w.work, "grown")) })
		r.signal(unix.SIGTERM)
		r.ends(125, "no last checkpoint: ", "is not ended, and runs unsupervised")
		r = w.adopts(pid)
		r.says("it is supervised again")
		w.stop(0)
		r.ends(0)
		if status := <-ended; status != 0 {
			t.Errorf("it has ended with %d", status)
		}
		w.nothingLeft()
	})
}

// givesUp waits until the supervisor has cut off what a program does for it: it closes that program's input.
func (r *run) givesUp() {
	r.w.t.Helper()
	input, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", r.w.victims(insideKilled)[0]))
	must(r.w.t, err)
	r.awaits("it gives up", func() bool {
		return !slices.ContainsFunc(glob(fmt.Sprintf("/proc/%d/fd", r.cmd.Process.Pid), "*"), func(fd string) bool {
			to, _ := os.Readlink(fd)
			return to == input
		})
	})
}

// TestAnAdoptedJobOutlivesItsFirstCheckpoint, which is cut off: by a second signal to its supervisor, or
// to the next one, which waits for what the first has begun.
func TestAnAdoptedJobOutlivesItsFirstCheckpoint(t *testing.T) {
	testenv.Parallel(t)
	for name, cut := range map[string]func(w *world, s *stop, pid int, r *run) *run{
		"of its supervisor": func(_ *world, s *stop, _ int, r *run) *run {
			r.signal(unix.SIGTERM)
			r.says("got SIGTERM: making a last checkpoint")
			r.signal(unix.SIGTERM)
			r.givesUp()
			s.goOn()
			return r
		},
		"of the next one": func(w *world, s *stop, pid int, r *run) *run {
			r.kill()
			r = w.adopts(pid)
			r.awaits("it is in the sandbox", func() bool { return len(w.victims(insideKilled)) == 2 })
			r.signal(unix.SIGTERM)
			r.says("got SIGTERM while D is being started or resumed")
			r.signal(unix.SIGTERM)
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newWorld(t)
				pid, ended := w.startsItself()
				w.ticks(3)
				s := w.stopAt("jobs.dumped")
				host := w.host
				w.host = s.host
				r := w.adopts(pid)
				w.host = host
				s.await(r)
				w.flags = []string{"--every", "0"}
				cut(w, s, pid, r).ends(125, "is not ended, and runs unsupervised")
				w.ticks(3)
				if name != "of its supervisor" {
					s.goOn()
				}
				r = w.adopts(pid)
				r.says("it is supervised again")
				w.stop(0)
				r.ends(0)
				<-ended
			})
		})
	}
}

// TestTheStatusOfAnAdoptedJob is that of the command, although another process is its parent.
func TestTheStatusOfAnAdoptedJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		for _, status := range []int{7, 0} {
			w := newWorld(t)
			pid, ended := w.startsItself()
			w.ticks(3)
			r := w.adopts(pid)
			r.verified(1)
			w.stop(status)
			r.ends(status, "has ended with exit status "+strconv.Itoa(status))
			if got := <-ended; got != status {
				t.Errorf("its parent got %d, want %d", got, status)
			}
			w.nothingLeft()
			if status == 0 {
				w.adopts(pid).ends(0, "has finished")
			}
		}
	})
}

// TestAnAdoptedJobWithoutItsKeeper is not taken for gone: a second copy would be started.
func TestAnAdoptedJobWithoutItsKeeper(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		pid, _ := w.startsItself()
		w.ticks(3)
		r := w.adopts(pid)
		r.verified(1)
		r.kill()
		w.kills(keeperKilled)
		testenv.Eventually(t, testenv.Soon, "the keeper is gone", func() bool { return len(w.victims(keeperKilled)) == 0 })
		r = w.adopts(pid)
		r.says("it is supervised again")
		if now := w.victims(keeperKilled); len(now) != 1 {
			t.Errorf("it has the keepers %v, want one", now)
		}
		r.verified(1)
		w.finish(r)
	})
}

// TestAnAdoptedJobEndsWhenItIsTakenOver, although its supervisor is gone.
func TestAnAdoptedJobEndsWhenItIsTakenOver(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		pid, ended := w.startsItself()
		w.ticks(3)
		r := w.adopts(pid, once...)
		r.verified(1)
		r.kill()
		testenv.WriteFile(t, filepath.Join(w.dir, "host"), "another boot 1\n")
		if status := <-ended; status != 128+int(unix.SIGKILL) {
			t.Errorf("it has ended with %d", status)
		}
		w.noProcesses()
	})
}

// TestASupervisedJobIsNotAdoptedAgain: two directories could each resume it, one after the other or at the same time.
func TestASupervisedJobIsNotAdoptedAgain(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		pid, _ := w.startsItself()
		w.ticks(3)
		others := make([]*exec.Cmd, 3) // at the same time
		said := make([]strings.Builder, len(others))
		for i := range others {
			dir := filepath.Join(w.t.TempDir(), fmt.Sprintf("other%d", i))
			others[i] = w.host.CucriuCommand("run", "--dir", dir, "--adopt", strconv.Itoa(pid))
			others[i].Stderr = &said[i]
			start(t, others[i])
		}
		ended := make(chan error, len(others))
		for _, other := range others {
			go func() { ended <- other.Wait() }()
		}
		<-ended
		<-ended // the third supervises it
		w.adopts(pid).ends(125, "it belongs to the long job other")
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-ended
		refused := 0
		for i := range said {
			if strings.Contains(said[i].String(), "was not touched: it belongs to the long job other") {
				refused++
			}
		}
		if refused != 2 {
			t.Errorf("%d were refused, of\n%s\n%s\n%s", refused, said[0].String(), said[1].String(), said[2].String())
		}
	})
}

// TestWhatCannotBeAdopted is refused, and not touched.
func TestWhatCannotBeAdopted(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		refused := func(w *world, pid int, says string) {
			t.Helper()
			w.adopts(pid).ends(125, says)
			if files, _ := filepath.Glob(filepath.Join(w.dir, "job.json")); len(files) > 0 {
				t.Errorf("left over: %v", files)
			}
		}
		w := newWorld(t)
		refused(w, 1<<21, "process 2097152: does not exist")
		w = newWorld(t)
		refused(w, os.Getpid(), "cannot be adopted, and was not touched")

		_, terminal := testenv.NewTerminal(t)
		w.command = []string{"sleep", "1000"}
		cmd := exec.Command("sleep", "1000")
		cmd.Stdin = terminal
		start(t, cmd)
		w = newWorld(t)
		refused(w, cmd.Process.Pid, "it has a terminal open")

		cmd = exec.Command("unshare", "--fork", "--pid", "--mount", "sleep", "1000")
		start(t, cmd)
		var inner int
		testenv.Eventually(t, testenv.Soon, "there is a process with namespaces of its own", func() bool {
			for _, pid := range testenv.PIDs() {
				if strings.Join(testenv.CommandLine(pid), " ") == "sleep 1000" && insidePID(pid) == 1 {
					inner = pid
				}
			}
			return inner != 0
		})
		cmd = exec.Command("sleep", "1000")
		start(t, cmd)
		refused(newWorld(t), cmd.Process.Pid, "its session began outside this pid namespace")
		refused(newWorld(t), inner, "is in a mount namespace of its own")

		// Its directory is another job's.
		w = newWorld(t)
		r := w.run()
		r.verified(1)
		r.kill()
		w.adopts(cmd.Process.Pid).ends(125, "is the directory of another job")
		w.finish(w.run())
	})
}

func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}
