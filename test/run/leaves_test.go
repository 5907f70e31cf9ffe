package run

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// exited waits until it is known how the job has ended.
func (w *world) exited() {
	w.t.Helper()
	testenv.Eventually(w.t, 3*testenv.Soon, "the end of the job is on record", func() bool {
		files, _ := filepath.Glob(filepath.Join(w.dir, "place-*", "exit.json"))
		return len(files) > 0
	})
}

// asks runs a cucriu command about the job beside the test. The channel has what it said.
func (w *world) asks(host *testenv.Host, args ...string) <-chan string {
	said := make(chan string, 1)
	cmd := host.CucriuCommand(args...)
	go func() {
		out, _ := cmd.CombinedOutput()
		said <- string(out)
	}()
	return said
}

// unreadable puts a directory in the place of a file, so that root cannot read it either, until the
// function that it returns is called.
func unreadable(t *testing.T, path string) (readable func()) {
	t.Helper()
	if err := errors.Join(os.Rename(path, path+".away"), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := errors.Join(os.Remove(path), os.Rename(path+".away", path)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAJobToldToLeaveHasNotFinished although it ends with status 0, and its supervisor is killed
// while a checkpoint is on its way to the store.
func TestAJobToldToLeaveHasNotFinished(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run()
		r.verified(1)
		r.kill()
		s := w.stopAt("jobs.staged")
		r = w.runAs(s.host)
		s.await(r)
		r.signal(unix.SIGTERM)
		r.says("got SIGTERM: making a last checkpoint")
		r.awaits("that is on record", func() bool { place := w.place(); return place != nil && place.Leaving })
		w.stop(0) // as a program may at this signal
		w.exited()
		r.kill()
		s.goOn()
		if err := os.Remove(filepath.Join(w.work, "stop")); err != nil {
			t.Fatal(err)
		}
		r = w.run()
		r.resumed("")
		w.finish(r)
	})
}

// TestAJobThatCouldNotBeStoppedFinishes later, although it was to leave once.
func TestAJobThatCouldNotBeStoppedFinishes(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		w.command = []string{"sh", "-c", `cd "$0"; head -c 2000000 /dev/zero >big; exec 3<>big; : >grown; until [ -e stop ]; do sleep 0.1; done; echo one more >>ends`, w.work}
		w.flags = []string{"--every", "0", "--files-limit", "1M"}
		r := w.run()
		r.awaits("the job has a large file open", func() bool { return testenv.Exists(filepath.Join(w.work, "grown")) })
		if out, err := w.host.Cucriu("jobs", "stop", w.dir); err == nil || !strings.Contains(out, "was not stopped, and keeps running") {
			t.Fatalf("%v: %s", err, out)
		}
		r.kill()
		w.stop(0)
		w.exited()
		w.run().ends(0, "D has ended with exit status 0")
		if data, _ := os.ReadFile(filepath.Join(w.work, "ends")); string(data) != "one more\n" {
			t.Errorf("it has ended: %q", data)
		}
		w.nothingLeft()
	})
}

// TestAJobThatFinishesWhileItIsStoppedHasFinished: nobody has told it to end.
func TestAJobThatFinishesWhileItIsStoppedHasFinished(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		s := w.stopAt("dump.inspect")
		r := w.runAs(s.host)
		w.ticks(3)
		said := w.asks(w.host, "jobs", "stop", w.dir)
		s.await(r)
		w.stop(0)
		w.exited()
		s.goOn()
		r.ends(0, "D has ended with exit status 0")
		if out := <-said; !strings.Contains(out, "was not stopped") && !strings.Contains(out, "has ended") {
			t.Errorf("jobs stop: %s", out)
		}
		w.run().ends(0, "D has finished")
		w.nothingLeft()
	})
}

// TestAJobWhoseCommandEndsWhileItIsStoppedHasFinished, although the command has left a process: no checkpoint is made of that.
func TestAJobWhoseCommandEndsWhileItIsStoppedHasFinished(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		w.command = []string{"sh", "-c", `cd "$0"; sleep 1000 & : >begun; until [ -e stop ]; do sleep 0.1; done`, w.work}
		w.flags = []string{"--every", "0"}
		s := w.stopAt("dump.inspect")
		r := w.runAs(s.host)
		r.awaits("the command runs", func() bool { return testenv.Exists(filepath.Join(w.work, "begun")) })
		said := w.asks(w.host, "jobs", "stop", w.dir)
		s.await(r)
		w.stop(0)
		r.awaits("the command has ended", func() bool {
			out, _ := exec.Command("sh", "-c", "cat /proc/[0-9]*/comm").Output()
			return strings.Contains(string(out), "cucriu:ended\n")
		})
		s.goOn()
		r.ends(0, "D has ended with exit status 0")
		<-said
		if len(w.checkpoints()) > 0 {
			t.Error("there is a checkpoint of what the command has left")
		}
		w.run().ends(0, "D has finished")
	})
}

// TestAProcessOfAPausedJobIsKilled: the others are told when they go on, as at any time.
func TestAProcessOfAPausedJobIsKilled(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newCUDAWorld(t)
		w.command = []string{"sh", "-c", `"$@" & wait $!; until [ -e "$3/stop" ]; do sleep 0.1; done; exit 5`, "sh", w.command[0], "--dir", w.cuda, "--mib", "1"}
		w.flags = []string{"--every", "0", "--probe=off"} // a trial would be a second one
		r := w.run()
		w.ticks(3)
		if out, err := w.host.Cucriu("jobs", "pause", w.dir); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		victims := testenv.Running("cudawork")
		if len(victims) != 1 {
			t.Fatalf("processes %v", victims)
		}
		_ = unix.Kill(victims[0], unix.SIGKILL)
		if out, err := w.host.Cucriu("jobs", "resume", w.dir); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		w.stop(0)
		r.ends(5)
	})
}

// TestAJobThatRunsHereIsNotGivenBack by a supervisor that ends before it has attached to it: another
// host would take the job over without being asked to.
func TestAJobThatRunsHereIsNotGivenBack(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run()
		r.verified(1)
		r.kill()
		readable := unreadable(t, filepath.Join(w.dir, "output.log"))
		w.run().ends(125, "output of the job")
		data, err := os.ReadFile(filepath.Join(w.dir, "owner.json"))
		var owner struct{ Released bool }
		if err != nil || json.Unmarshal(data, &owner) != nil || owner.Released {
			t.Errorf("the directory is given back: %v %s", err, data)
		}
		readable()
		r = w.run()
		r.says("it is supervised again")
		w.finish(r)
	})
}

// TestAnImageIsNotLostToAClockOrAnError: the last image of a job that was ended becomes a checkpoint
// although the newest one seems to be of later, and although it cannot be read at first.
func TestAnImageIsNotLostToAClockOrAnError(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run()
		r.verified(1)
		r.kill()
		newest := w.newest()
		w.flags = []string{"--every", "0"}
		s := w.stopAt("jobs.staged")
		r = w.runAs(s.host)
		r.says("it is supervised again")
		r.signal(unix.SIGTERM)
		s.await(r)
		r.kill()
		s.goOn()
		staged, _ := filepath.Glob(filepath.Join(w.dir, "staged", "*", "image", "cucriu-job.json"))
		if len(staged) != 1 {
			t.Fatalf("staged: %v", staged)
		}
		edit(t, staged[0], func(of map[string]any) { of["begun"] = "2001-01-01T00:00:00Z" })
		readable := unreadable(t, staged[0])
		w.run().ends(125, "could not be made a checkpoint", "run this command again, or remove that directory")
		readable()
		r = w.run()
		r.says("was made from the image that an earlier supervisor had staged")
		r.resumed(w.newest())
		if w.newest() <= newest {
			t.Errorf("the newest checkpoint was %s, and is %s", newest, w.newest())
		}
		w.finish(r)
		if again := inOrder(t, w); again != 0 {
			t.Errorf("%d ticks were done twice", again)
		}
	})
}

// TestTheNewestOfTwoLeftImagesIsResumed: one was left by a supervisor that was killed, and could not be
// read by the next one, which was killed before the job's last image became a checkpoint.
func TestTheNewestOfTwoLeftImagesIsResumed(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "1s", "--stage", "disk"}
		s := w.stopAt("jobs.staged")
		r := w.runAs(s.host)
		s.await(r)
		r.kill()
		s.goOn()
		staged, _ := filepath.Glob(filepath.Join(w.dir, "staged", "*", "image", "cucriu-job.json"))
		if len(staged) != 1 {
			t.Fatalf("staged: %v", staged)
		}
		readable := unreadable(t, staged[0])
		w.flags = []string{"--every", "0"}
		s = w.stopAt("jobs.staged")
		r = w.runAs(s.host)
		r.says("could not be made a checkpoint")
		w.ticks(5)
		r.signal(unix.SIGTERM)
		s.await(r)
		r.kill()
		s.goOn()
		readable()
		r = w.run()
		r.resumed("")
		w.finish(r)
		if again := inOrder(t, w); again != 0 {
			t.Errorf("%d ticks were done twice", again)
		}
		w.nothingLeft()
	})
}

// TestAPublicationThatWasKilledLeavesItsRoom to the next one: the image that is staged becomes a checkpoint
// although what had been written of it fills the disk.
func TestAPublicationThatWasKilledLeavesItsRoom(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--stage", t.TempDir()}
		testenv.SmallDisk(t, w.dir, "48m")
		w.mounts = mounts(t)
		s := w.stopAt("store.begin")
		r := w.runAs(s.host, "--every", "1s")
		s.await(r)
		r.killsAll()
		s.goOn()
		ballast := filepath.Join(w.dir, "checkpoints", ".partial-000001", "pages")
		if out, err := exec.Command("dd", "if=/dev/zero", "of="+ballast, "bs=64k").CombinedOutput(); !strings.Contains(string(out), "No space left") {
			t.Fatalf("the disk is not full: %v %s", err, out)
		}
		r = w.run("--every", "0")
		r.says("was made from the image that an earlier supervisor had staged")
		r.resumed("")
		w.finish(r)
		inOrder(t, w)
	})
}

// TestASignalToTheJobItselfCostsItsWork, which is said: no last checkpoint can be made of a job that it has ended.
func TestASignalToTheJobItselfCostsItsWork(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		r := w.run()
		w.ticks(1)
		w.checkpoint()
		w.ticks(1)
		for _, pid := range append(w.victims(commandKilled), w.victims(rootKilled)...) {
			_ = unix.Kill(pid, unix.SIGTERM)
		}
		r.signal(unix.SIGTERM)
		r.ends(requeue, "what D has done since ", " is lost: ",
			"have that sent to cucriu run alone (systemd: KillMode=mixed)",
			"resumes from checkpoint "+w.newest())
		w.finish(w.goesOn(w.newest()))
	})
}
