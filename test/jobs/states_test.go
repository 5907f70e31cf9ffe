package jobs

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// metric fails the test unless the job's file for Prometheus has a line.
func (a *asked) metric(file, line string) {
	a.t.Helper()
	data, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(data), "\ncucriu_job_"+line+"\n") {
		a.t.Fatalf("no %q in the metrics: %v\n%s", line, err, data)
	}
}

// TestEachStateHasItsName in the list, in JSON and in the metrics, which are not stale after any end.
func TestEachStateHasItsName(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "train.prom")
		a := newAsked(t, "--metrics", file)
		state := func(state, running string) {
			t.Helper()
			a.is(state)
			a.metric(file, `running{job="train"} `+running)
			a.metric(file, `state{job="train",state="`+state+`"} 1`)
		}
		state("running", "1")
		a.cucriu(0, "train is paused", "jobs", "pause", "train")
		state("paused", "1")
		a.cucriu(0, "", "jobs", "resume", "train")

		pid := strconv.Itoa(a.cudaPID())
		a.suspends(pid)
		a.is("suspended")
		a.cucriu(0, " suspended ", "jobs", "list")
		a.cucriu(0, "", "resume", "-p", pid)
		a.is("running")

		_ = a.super.Process.Kill()
		_ = a.super.Wait()
		a.metric(file, `running{job="train"} 1`) // which nobody could change
		state("no supervisor", "0")
		a.run("--metrics", file)
		state("running", "1")

		a.cucriu(0, "checkpoint 00000", "jobs", "stop", "train")
		a.ends(85)
		state("stopped by user", "0")
		a.cucriu(0, "stopped by user", "jobs", "show", "train")

		a.run("--metrics", file)
		if err := a.super.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		a.ends(85)
		state("preempted", "0")

		a.run("--metrics", file)
		a.cucriu(3, "train is running: end it first with cucriu jobs stop train", "jobs", "rm", "train", "--yes")
		a.finish()
		state("finished", "0")
		a.metric(file, `exit_status{job="train"} 0`)
		a.cucriu(0, "finished with status 0", "jobs", "list")
		a.cucriu(0, "removed train", "jobs", "rm", "train", "--yes")
		if testenv.Exists(a.dir) || testenv.Exists(file) {
			t.Error("something of the job is left")
		}
	})
}

// TestADamagedCheckpointStaysMarked until it is verified again; a job without another is damaged.
func TestADamagedCheckpointStaysMarked(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAsked(t)
		a.cucriu(0, "checkpoint 000001", "jobs", "stop", "train")
		a.ends(85)
		shards, err := filepath.Glob(filepath.Join(a.dir, "checkpoints", "000001", "cucriu-pages-*-*-*.img"))
		if err != nil || len(shards) == 0 {
			t.Fatal(shards, err)
		}
		shard := slices.MaxFunc(shards, func(a, b string) int { return cmp.Compare(size(a), size(b)) })
		a.cucriu(0, "checkpoint 000001 is intact", "jobs", "verify", "train")
		flip(t, shard)
		a.cucriu(0, "verified", "jobs", "list", "train") // nobody has read it
		a.cucriu(1, "1 of 1 checkpoint of train cannot be used: restore one from a copy; or cucriu jobs rm train --yes removes the job", "jobs", "verify", "train")
		a.cucriu(1, "checksum mismatch", "jobs", "verify", "train")
		a.cucriu(1, "(found 20", "jobs", "list", "train")
		a.cucriu(1, `"damaged_at": "20`, "jobs", "list", "train", "--json")
		a.cucriu(1, "damaged", "jobs", "show", "train")
		a.is("damaged")
		a.cucriu(1, "checksum mismatch", "verify", filepath.Join(a.dir, "checkpoints", "000001"))
		flip(t, shard)
		a.is("damaged")
		a.cucriu(0, "is complete and undamaged", "verify", filepath.Join(a.dir, "checkpoints", "000001"))
		a.cucriu(0, "checkpoint 000001 is intact", "jobs", "verify", "train")
		a.cucriu(0, "verified", "jobs", "list", "train")
		a.is("stopped by user")
		a.run()
		a.finish()
	})
}

// TestAJobThatRunsIsNotRemoved, with its supervisor or without.
func TestAJobThatRunsIsNotRemoved(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAsked(t)
		a.cucriu(0, "checkpoint 000001", "jobs", "checkpoint", "train")
		_ = a.super.Process.Kill()
		_ = a.super.Wait()
		a.cucriu(3, "runs without a supervisor", "jobs", "rm", "train", "--yes")
		if n := len(a.checkpoints()); n != 1 {
			t.Errorf("%d checkpoints", n)
		}
		a.run()
		a.finish()
	})
}

// cudaPID returns the pid of the job's process that uses CUDA.
func (a *asked) cudaPID() int {
	a.t.Helper()
	for _, init := range a.placeInits() {
		tree, _ := proc.Tree(init)
		for _, pid := range tree[min(1, len(tree)):] {
			if held, err := a.Driver().ProcessMemory(a.t.Context(), pid); err == nil && len(held) > 0 {
				return pid
			}
		}
	}
	a.t.Fatal("no process of the job uses CUDA")
	return 0
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// flip changes a byte of a file; the second time, back.
func flip(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestOnlyWhatIsTheJobsIsRemovedWithIt: files of the user stay, in whichever directory they are.
func TestOnlyWhatIsTheJobsIsRemovedWithIt(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		dir := filepath.Join(t.TempDir(), "D")
		big := t.TempDir()
		own := []string{"checkpoints/epoch1.pt", "checkpoints/best/model.pt", "staged/notes", "place-holder/notes", "notes"}
		for _, name := range own {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
				t.Fatal(err)
			}
			testenv.WriteFile(t, filepath.Join(dir, name), name)
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		a := newAskedIn(t, host, dir)
		a.cucriu(0, "checkpoint 000001", "jobs", "checkpoint", "train")
		a.finish()
		a.cucriu(0, "left: "+filepath.Join(dir, "checkpoints", "epoch1.pt")+"\n", "jobs", "rm", "train", "--yes")
		for _, name := range own {
			if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != name {
				t.Errorf("%s: %q, %v", name, data, err)
			}
		}
		left, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(left) != 4 {
			t.Errorf("left: %q, %v", left, err)
		}

		// What lies on another disk is removed, too.
		dir = filepath.Join(t.TempDir(), "E")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(big, filepath.Join(dir, "checkpoints")); err != nil {
			t.Fatal(err)
		}
		a = newAskedIn(t, host, dir)
		a.cucriu(0, "checkpoint 000001", "jobs", "checkpoint", "train")
		a.finish()
		a.cucriu(0, "removed train", "jobs", "rm", "train", "--yes")
		if left, err := os.ReadDir(big); err != nil || len(left) > 0 || testenv.Exists(dir) {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}

// TestAnImageThatIsNoCheckpointYetIsNotRemovedUnasked: it may be all that there is of a job.
func TestAnImageThatIsNoCheckpointYetIsNotRemovedUnasked(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAskedOn(t, testenv.NewHost(t, 1), "jobs.staged=kill", "--stage", "disk")
		_ = a.CucriuCommand("jobs", "stop", "train").Run()
		_ = a.super.Wait()
		for _, pid := range a.placeInits() {
			_ = unix.Kill(pid, unix.SIGKILL)
			testenv.Eventually(t, testenv.Soon, "the sandbox has ended", func() bool { return !testenv.JobOf(t, pid).Alive() })
		}
		a.cucriu(3, "which is not a checkpoint yet, would be lost: add --yes", "jobs", "rm", "train")
		a.UseFailpoint("")
		a.run("--stage", "disk")
		if n := len(a.checkpoints()); n != 1 {
			t.Errorf("%d checkpoints", n)
		}
		a.finish()
	})
}
