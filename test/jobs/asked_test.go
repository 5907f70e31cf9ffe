package jobs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// asked is a job of which people ask something while it runs.
type asked struct {
	*testenv.Host
	t       *testing.T
	dir     string // D
	work    string
	command []string
	job     *testenv.Job // nil if it does not use CUDA
	super   *exec.Cmd
	said    *bytes.Buffer
}

// newAsked makes a job that uses CUDA and has two processes which do not.
func newAsked(t *testing.T, flags ...string) *asked {
	t.Helper()
	return newAskedOn(t, testenv.NewHost(t, 1), "", flags...)
}

// newAskedOn makes such a job on a host, where what cucriu does goes wrong at a failpoint.
func newAskedOn(t *testing.T, host *testenv.Host, point string, flags ...string) *asked {
	t.Helper()
	if point != "" {
		host.UseFailpoint(point)
	}
	return newAskedIn(t, host, filepath.Join(t.TempDir(), "D"), flags...)
}

// newAskedIn makes such a job in a directory.
func newAskedIn(t *testing.T, host *testenv.Host, dir string, flags ...string) *asked {
	t.Helper()
	a := &asked{Host: host, t: t, dir: dir, work: t.TempDir()}
	a.command = []string{testenv.Artefact(t, "make workload", "build", "workload", "cudawork"), "--dir", a.work, "--mib", "4", "--loaders", "2"}
	a.job = testenv.JobOf(t, 1)
	a.job.Dirs = []string{a.work}
	a.run(flags...)
	a.job.WaitTicks(3)
	return a
}

// run starts the supervisor. The name of the job is train.
func (a *asked) run(flags ...string) {
	a.t.Helper()
	args := slices.Concat([]string{"run", "--dir", a.dir, "--name", "train", "--every", "0", "--requeue-status", "85"}, flags, []string{"--"}, a.command)
	a.said = new(bytes.Buffer)
	a.super = a.CucriuCommand(args...)
	a.super.Stderr = a.said
	if err := a.super.Start(); err != nil {
		a.t.Fatal(err)
	}
	super := a.super
	a.t.Cleanup(func() { // whatever is left of a test that has failed
		_ = super.Process.Kill()
		inits := a.placeInits()
		for _, pid := range inits {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		// What still ends may write into a folder that is removed next.
		testenv.Eventually(a.t, testenv.Soon, "the supervisor and the sandbox have ended", func() bool {
			return !slices.ContainsFunc(append(inits, super.Process.Pid), func(pid int) bool { return testenv.JobOf(a.t, pid).Alive() })
		})
	})
	testenv.Eventually(a.t, 3*testenv.Soon, "the job is under care", func() bool {
		state, supervisor := a.stateBy() // for a moment it is what the last supervisor wrote
		return supervisor == super.Process.Pid && slices.Contains([]string{"running", "paused"}, state)
	})
}

func (a *asked) placeInits() (pids []int) {
	files, _ := filepath.Glob(filepath.Join(a.dir, "place-*", "place.json"))
	for _, file := range files {
		var place struct {
			Init proc.Ident `json:"init"`
		}
		data, _ := os.ReadFile(file)
		if json.Unmarshal(data, &place) == nil && place.Init.PID > 1 {
			pids = append(pids, place.Init.PID)
		}
	}
	return pids
}

// cucriu runs a command, and fails the test unless it ends with the status and says this.
func (a *asked) cucriu(status int, says string, args ...string) string {
	a.t.Helper()
	cmd := a.CucriuCommand(args...)
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != status || !strings.Contains(string(out), says) {
		a.t.Fatalf("cucriu %v: exit status %d, want %d; want %q in\n%s\ncucriu run:\n%s", args, code, status, says, out, a.said)
	}
	return string(out)
}

// state is what cucriu status says of the job; "" if it does not know it.
func (a *asked) state() string {
	a.t.Helper()
	state, _ := a.stateBy()
	return state
}

// stateBy returns the state, and the pid of the supervisor that has written it.
func (a *asked) stateBy() (state string, supervisor int) {
	a.t.Helper()
	out, err := a.CucriuCommand("status", "--json").Output()
	var report struct {
		Jobs []struct {
			Name, State string
			PID         int
		}
	}
	// What it could not find out of CUDA processes is an error beside the JSON, and not our subject.
	if json.Unmarshal(out, &report) != nil || report.Jobs == nil {
		a.t.Fatalf("cucriu status: %v\n%s", err, out)
	}
	for _, job := range report.Jobs {
		if job.Name == "train" {
			return job.State, job.PID
		}
	}
	return "", 0
}

func (a *asked) is(state string) {
	a.t.Helper()
	if got := a.state(); got != state {
		a.t.Fatalf("the job is %q, want %q\n%s", got, state, a.said)
	}
}

func (a *asked) checkpoints() []string {
	dirs, _ := filepath.Glob(filepath.Join(a.dir, "checkpoints", "[0-9]*"))
	return dirs
}

// ends waits for the supervisor's end.
func (a *asked) ends(status int) {
	a.t.Helper()
	_ = a.super.Wait()
	if code := a.super.ProcessState.ExitCode(); code != status {
		a.t.Fatalf("cucriu run: exit status %d, want %d\n%s", code, status, a.said)
	}
}

// finish ends the job.
func (a *asked) finish() {
	a.t.Helper()
	a.job.Runs()
	testenv.WriteFile(a.t, filepath.Join(a.work, "stop"), "")
	a.ends(0)
	a.is("finished")
}

// standsStill fails the test if any process of the job runs.
func (a *asked) standsStill() {
	a.t.Helper()
	inits := a.placeInits()
	if len(inits) != 1 {
		a.t.Fatalf("places: %v", inits)
	}
	// Beside it there may be programs of the killed supervisor, such as a trial restore of the job, which are about to end.
	testenv.Eventually(a.t, testenv.Soon, "the processes of the job in the sandbox are stopped", func() bool {
		tree, err := proc.Tree(inits[0])
		job := slices.DeleteFunc(tree, func(pid int) bool { return testenv.CommandLine(pid)[0] != a.command[0] })
		return err == nil && len(job) > 0 && !slices.ContainsFunc(job, func(pid int) bool {
			stopped, err := proc.Stopped(pid)
			return err != nil || !stopped
		})
	})
}

// gpuBytes is how much GPU memory the processes of the host have.
func (a *asked) gpuBytes() (bytes uint64) {
	a.t.Helper()
	for _, pid := range a.placeInits() {
		tree, err := proc.Tree(pid)
		if err != nil {
			a.t.Fatal(err)
		}
		for _, pid := range tree[1:] {
			held, err := a.Driver().ProcessMemory(a.t.Context(), pid)
			if err != nil {
				continue // it does not use CUDA
			}
			for _, n := range held {
				bytes += n
			}
		}
	}
	return bytes
}

// TestACheckpointOnRequest is made at once, and is in the job's directory when the command ends.
func TestACheckpointOnRequest(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAsked(t)
		a.cucriu(0, "checkpoint 000001: paused for", "jobs", "checkpoint", "train")
		master, terminal := testenv.NewTerminal(t)
		cmd := a.CucriuCommand("jobs", "checkpoint", a.dir)
		cmd.Stderr = terminal
		if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), "checkpoint 000002") {
			t.Fatalf("%v: %s", err, out)
		}
		terminal.Close()
		if shown, _ := io.ReadAll(master); !regexp.MustCompile(`making a checkpoint: \d+%, \d+m?s left`).Match(shown) { // the read ends with EIO
			t.Errorf("what the last one took is not expected: %q", shown)
		}
		if n := len(a.checkpoints()); n != 2 {
			t.Errorf("%d checkpoints", n)
		}
		a.cucriu(0, "checkpoint 000002 is intact", "jobs", "verify", "train")
		a.cucriu(0, "removed: 000001", "jobs", "prune", "train", "--keep", "1") // through the supervisor
		a.finish()
	})
}

// TestRequestsAtTheSameTime are served one after the other.
func TestRequestsAtTheSameTime(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAsked(t, "--keep", "10")
		var cmds []*exec.Cmd
		for range 3 {
			cmd := a.CucriuCommand("jobs", "checkpoint", "train")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			cmds = append(cmds, cmd)
		}
		for _, cmd := range cmds {
			if err := cmd.Wait(); err != nil {
				t.Errorf("cucriu jobs checkpoint: %v", err)
			}
		}
		if n := len(a.checkpoints()); n != len(cmds) {
			t.Errorf("%d checkpoints for %d requests\n%s", n, len(cmds), a.said)
		}
		a.finish()
	})
}

// TestAPausedJobStandsStill with all its processes, has no GPU memory, makes no checkpoints, and
// goes on where it was.
func TestAPausedJobStandsStill(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAsked(t)
		if a.gpuBytes() == 0 {
			t.Fatal("the job has no GPU memory to free")
		}
		a.cucriu(3, "train is not paused", "jobs", "resume", "train")
		root := a.cudaPID()
		pid := strconv.Itoa(root)
		for _, pid := range []int{a.super.Process.Pid, root} {
			const says = "belongs to the long job train: cucriu jobs checkpoint train makes a checkpoint, cucriu jobs stop train ends it with one"
			a.cucriu(3, says, "dump", "-t", strconv.Itoa(pid), "-D", "images")
			a.cucriu(3, "belongs to the long job train", "check", "-t", strconv.Itoa(pid))
		}
		a.cucriu(3, "cucriu jobs pause train frees its GPUs", "suspend", "-p", strconv.Itoa(a.super.Process.Pid))
		a.cucriu(3, "belongs to the long job train: cucriu jobs pause train frees its GPUs", "suspend", "-p", pid)
		a.cucriu(0, "train is paused", "jobs", "pause", "train")
		a.is("paused")
		a.standsStill()
		if n := a.gpuBytes(); n != 0 {
			t.Errorf("%d bytes of GPU memory are not free", n)
		}
		before := a.job.Ticks()
		a.cucriu(3, "train is already paused: resume it with cucriu jobs resume train", "jobs", "pause", "train")
		a.cucriu(3, "makes no checkpoints", "jobs", "checkpoint", "train")
		for _, args := range [][]string{{"resume", "-p", pid}, {"unlock", "-p", pid}, {"lock", "-p", pid}, {"dump", "-t", pid, "-D", "images"}} {
			a.cucriu(3, "belongs to the paused long job train: cucriu jobs resume train", args...)
		}
		if err := a.super.Process.Signal(unix.SIGCONT); err != nil { // a shell's fg
			t.Fatal(err)
		}
		if err := a.super.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
		a.standsStill()
		if after := a.job.Ticks(); !slices.Equal(before, after) {
			t.Errorf("the job went on from %v to %v", before, after)
		}
		a.cucriu(0, "train is resumed", "jobs", "resume", "train")
		a.is("running")
		a.job.Runs()
		a.cucriu(0, "checkpoint 000002", "jobs", "checkpoint", "train") // the first was made for the pause
		a.finish()
		if n := len(a.saidLines("train is paused, and does not get SIGINT: cucriu jobs stop train ends it with a checkpoint")); n != 1 {
			t.Errorf("Ctrl-C in the pause is answered %d times:\n%s", n, a.said)
		}
	})
}

// TestARemedyNamesAProcessAsThisHostDoes, and not by its pid in the job's sandbox.
func TestARemedyNamesAProcessAsThisHostDoes(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAsked(t)
		pid := strconv.Itoa(a.cudaPID())
		a.cucriu(0, "", "lock", "-p", pid)
		for _, op := range []string{"checkpoint", "stop"} {
			if said := a.cucriu(3, "process "+pid+" (", "jobs", op, "train"); !strings.Contains(said, "cucriu unlock -p "+pid+" lets it run again") {
				t.Errorf("jobs %s says %s", op, said)
			}
		}
		a.cucriu(0, "", "unlock", "-p", pid)
		a.cucriu(0, "checkpoint 000001", "jobs", "checkpoint", "train")
		a.finish()
	})
}

// TestAJobCannotAskForItsOwnCheckpoint: whoever asks would be in it. It is told so, and runs on.
func TestAJobCannotAskForItsOwnCheckpoint(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := &asked{Host: testenv.NewHost(t, 1), t: t, dir: filepath.Join(t.TempDir(), "D"), work: t.TempDir()}
		ask := a.CucriuCommand("jobs")
		a.command = []string{"sh", "-c", `cd "$0"; for op in checkpoint pause stop; do "$@" $op train 2>>said; echo "status $?" >>said; done; "$1" run --dir inner -- true 2>>said; echo "status $?" >>said; : >asked; until [ -e stop ]; do sleep 0.1; done`, a.work}
		a.command = append(a.command, ask.Args...)
		a.run()
		testenv.Eventually(t, 3*testenv.Soon, "the job has asked", func() bool { return testenv.Exists(filepath.Join(a.work, "asked")) })
		said, err := os.ReadFile(filepath.Join(a.work, "said"))
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range []string{"checkpoint", "pause", "stop"} {
			if want := "cucriu jobs " + op + " runs inside train, and would be part of what it stops: run it outside the job, in another shell of this host\nstatus 3\n"; !strings.Contains(string(said), want) {
				t.Errorf("jobs %s in the job: no %q in\n%s", op, want, said)
			}
		}
		if want := "cucriu run runs inside " + a.dir + ", and its job would be part of that: run it outside the job, in another shell of this host\nstatus 125\n"; !strings.Contains(string(said), want) {
			t.Errorf("run in the job: no %q in\n%s", want, said)
		}
		a.cucriu(0, "checkpoint 000001", "jobs", "checkpoint", "train")
		testenv.WriteFile(t, filepath.Join(a.work, "stop"), "")
		a.ends(0)
	})
}

// TestAPausedJobMakesNoCheckpointsOnSchedule, and makes them again when it goes on.
func TestAPausedJobMakesNoCheckpointsOnSchedule(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAsked(t, "--every", "1s")
		a.cucriu(0, "", "jobs", "pause", "train")
		before := a.checkpoints()
		time.Sleep(2 * time.Second)
		if after := a.checkpoints(); !slices.Equal(before, after) {
			t.Errorf("checkpoints before the pause: %v, and in it: %v", before, after)
		}
		a.cucriu(0, "", "jobs", "resume", "train")
		testenv.Eventually(t, testenv.Soon, "there is another checkpoint", func() bool { return !slices.Equal(before, a.checkpoints()) })
		testenv.WriteFile(t, filepath.Join(a.work, "stop"), "") // not finish: the next one may stop the job's threads
		a.ends(0)
	})
}

// TestAPausedJobStaysPausedWithoutItsSupervisor, and with the next one.
func TestAPausedJobStaysPausedWithoutItsSupervisor(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAsked(t)
		a.cucriu(0, "", "jobs", "pause", "train")
		_ = a.super.Process.Kill()
		_ = a.super.Wait()
		a.is("no supervisor")
		a.standsStill()
		const says = "is paused, and has no supervisor: run the same cucriu run command again, then cucriu jobs resume train"
		a.cucriu(3, says, "jobs", "resume", "train")
		a.cucriu(3, "without a supervisor", "jobs", "prune", "train", "--keep", "1")
		a.run()
		a.is("paused")
		a.standsStill()
		a.cucriu(0, "", "jobs", "resume", "train")
		a.finish()
	})
}

// TestAPausedJobIsPreempted: it goes on first, because its last checkpoint needs its GPU memory.
func TestAPausedJobIsPreempted(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAsked(t)
		a.cucriu(0, "", "jobs", "pause", "train")
		if err := a.super.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		a.ends(85)
		a.is("preempted")
		if n := len(a.checkpoints()); n != 2 {
			t.Errorf("%d checkpoints\n%s", n, a.said)
		}
		a.run()
		a.finish()
	})
}

// TestAPausedJobWhoseGPUIsTakenStaysPaused if it is to stop, and that is what is said.
func TestAPausedJobWhoseGPUIsTakenStaysPaused(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAskedOn(t, testenv.NewHost(t, 1, "--mib-per-gpu", "64"), "")
		a.cucriu(0, "train is paused", "jobs", "pause", "train")
		other := a.Start(1, "--mib", "60")
		const says = "train was not stopped: train could not be resumed, and is still paused: "
		a.cucriu(3, says, "jobs", "stop", "train")
		a.is("paused")
		a.standsStill()
		other.Kill()
		testenv.Eventually(t, testenv.Soon, "the other is gone", other.Gone)
		a.cucriu(0, "checkpoint 000002", "jobs", "stop", "train")
		a.ends(85)
	})
}

// TestAJobWhoseDirectoryWasRenamedIsToldSo, whoever asks: nothing is lost once it has its name again.
func TestAJobWhoseDirectoryWasRenamedIsToldSo(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAsked(t, "--probe", "off")
		a.cucriu(0, "checkpoint 000001", "jobs", "checkpoint", "train")
		aside, says := a.dir+".aside", "job directory "+a.dir+" was moved or removed: bring the directory back as it was"
		moves := func(from, to string) {
			t.Helper()
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
		}
		moves(a.dir, aside)
		testenv.Eventually(t, 3*testenv.Soon, "the supervisor has seen it", func() bool { return len(a.saidLines(says)) > 0 })
		list := strings.Join(strings.Fields(a.cucriu(0, " running ", "jobs", "list")), " ")
		if !strings.Contains(list, says) || strings.Contains(list, "not protected") {
			t.Errorf("jobs list says %s", list)
		}
		for _, job := range []string{"train", aside} {
			a.cucriu(3, says, "jobs", "checkpoint", job)
			a.cucriu(3, says, "jobs", "show", job)
			a.cucriu(3, "train is running", "jobs", "rm", job, "--yes")
			a.cucriu(1, says, "jobs", "stop", job)
		}
		moves(aside, a.dir)
		a.cucriu(0, "checkpoint 000002", "jobs", "checkpoint", "train")

		// A copy of it is not the job's.
		if out, err := exec.Command("cp", "-a", a.dir, aside).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		a.cucriu(3, aside+" was moved or copied: the job's checkpoints can be restored as "+a.dir+": use that one",
			"jobs", "stop", aside)
		if err := os.RemoveAll(aside); err != nil {
			t.Fatal(err)
		}

		// Its last checkpoint has nowhere to go.
		moves(a.dir, aside)
		if err := a.super.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		a.ends(125)
		moves(aside, a.dir)
		if n := len(a.saidLines("once its directory is back, the same command resumes from checkpoint 000002")); n != 1 {
			t.Errorf("it says %s", a.said)
		}
		a.run()
		a.job.WaitTicks(3)
		a.finish()
		if text := "resumes from checkpoint 000002"; !strings.Contains(a.said.String(), text) {
			t.Errorf("no %q:\n%s", text, a.said)
		}
	})
}

// TestAJobOfAnotherRunDirectoryIsNotTakenForOneThatDoesNotRun, and its own is named.
func TestAJobOfAnotherRunDirectoryIsNotTakenForOneThatDoesNotRun(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a, other := newAsked(t), t.TempDir()
		a.Setenv("CUCRIU_RUN_DIR", other)
		says := fmt.Sprintf("train (%s) runs here under process %d, with another run directory than %s: "+
			"set CUCRIU_RUN_DIR=%s\n", a.dir, a.super.Process.Pid, other, a.RunDir)
		for _, op := range []string{"checkpoint", "pause", "stop", "show", "rm", "verify"} {
			a.cucriu(3, says, "jobs", op, a.dir)
		}
		a.cucriu(125, says, "run", "--dir", a.dir)
		a.Setenv("CUCRIU_RUN_DIR", a.RunDir)
		a.cucriu(0, "checkpoint 000001", "jobs", "checkpoint", a.dir)
		a.finish()
	})
}

// TestAPauseThatFailsIsUndone: what was stopped goes on.
func TestAPauseThatFailsIsUndone(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAsked(t)
		a.Faults("checkpoint return 999 skip 1") // the first is for the checkpoint
		a.cucriu(1, "train is not paused", "jobs", "pause", "train")
		a.Faults()
		a.is("running")
		a.job.Runs()
		a.finish()
	})
}

// TestAStoppedJobGoesOnFromItsLastCheckpoint, as soon as the command has ended.
func TestAStoppedJobGoesOnFromItsLastCheckpoint(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAsked(t)
		a.cucriu(0, "checkpoint 000001", "jobs", "stop", "train")
		ticks := a.job.Ticks()
		a.ends(85)
		a.is("stopped by user")
		a.cucriu(3, "was stopped with cucriu jobs stop, and does not run", "jobs", "stop", "train")
		a.run()
		a.job.WaitTicks(ticks[0] + 1)
		a.finish()
		if text := "resumes from checkpoint 000001"; !strings.Contains(a.said.String(), text) {
			t.Errorf("no %q:\n%s", text, a.said)
		}
	})
}

// TestAStopThatFailsIsToldSo although the last checkpoint was made: the directory was not given back.
func TestAStopThatFailsIsToldSo(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host, dir := testenv.NewHost(t, 1), filepath.Join(t.TempDir(), "D")
		owner := filepath.Join(dir, "owner.json")
		host.UseFailpoint("store.renamed=run " + testenv.Script(t, fmt.Sprintf("mv %s %[1]s.away; mkdir %[1]s", owner)))
		a := newAskedIn(t, host, dir)
		a.cucriu(1, "train has a last checkpoint, 000001, but was not stopped properly: ", "jobs", "stop", "train")
		a.ends(125)
		if err := errors.Join(os.Remove(owner), os.Rename(owner+".away", owner)); err != nil {
			t.Fatal(err)
		}
		a.UseFailpoint("")
		a.run()
		a.finish()
	})
}

// TestAJobThatCannotBeDumpedIsNotStopped: what it has since its last checkpoint would be lost.
func TestAJobThatCannotBeDumpedIsNotStopped(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAsked(t)
		a.Faults("checkpoint return 999")
		a.cucriu(1, "train was not stopped, and keeps running", "jobs", "stop", "train")
		a.Faults()
		a.is("running")
		a.job.Runs()
		a.finish()
	})
}

// TestAJobWithoutCUDAIsPaused by a stop of all its processes, of which one is between vfork and exec.
func TestAJobWithoutCUDAIsPaused(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "written")
		a := &asked{Host: testenv.NewHost(t, 1), t: t, dir: filepath.Join(t.TempDir(), "D"), command: []string{
			"/bin/sh", "-c", `"$1" & (while [ ! -e "$0".stop ]; do printf . >>"$0"; sleep 0.01; done) & wait $!`, file,
			testenv.Artefact(t, "make workload", "build", "workload", "vfork"),
		}}
		a.run()
		size := func() int64 {
			info, err := os.Stat(file)
			if err != nil {
				return 0
			}
			return info.Size()
		}
		grows := func() {
			t.Helper()
			from := size()
			testenv.Eventually(t, testenv.Soon, "the job writes", func() bool { return size() > from })
		}
		grows()
		a.cucriu(0, "", "jobs", "pause", "train")
		a.standsStill()
		before := size()
		time.Sleep(200 * time.Millisecond)
		if after := size(); after != before {
			t.Errorf("it wrote on in its pause: %s bytes", strconv.FormatInt(after-before, 10))
		}
		a.cucriu(0, "", "jobs", "resume", "train")
		grows()
		testenv.WriteFile(t, file+".stop", "")
		a.ends(0)
	})
}
