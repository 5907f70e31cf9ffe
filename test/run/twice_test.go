package run

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs"
	"cucriu/internal/testenv"
)

// vanish is something that becomes of the directory of a job that runs.
type vanish struct {
	do   func(t *testing.T, w *world, backup string)
	undo func(t *testing.T, w *world)
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// remove removes a directory into which a supervisor may write its log meanwhile.
func remove(t *testing.T, dir string) {
	t.Helper()
	testenv.Eventually(t, testenv.Soon, dir+" is removed", func() bool { return os.RemoveAll(dir) == nil })
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func mount(t *testing.T, source, target, kind string, flags uintptr, options string) {
	t.Helper()
	if err := unix.Mount(source, target, kind, flags, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
}

func unmount(t *testing.T, target string) {
	t.Helper()
	testenv.Eventually(t, testenv.Soon, "nobody has anything open on "+target, func() bool { return unix.Unmount(target, 0) == nil })
}

func vanishes() map[string]vanish {
	aside := func(t *testing.T, w *world) { rename(t, w.dir, w.dir+".aside") }
	bring := func(t *testing.T, w *world) {
		remove(t, w.dir)
		rename(t, w.dir+".aside", w.dir)
	}
	return map[string]vanish{
		"removed":   {func(t *testing.T, w *world, _ string) { aside(t, w) }, bring},
		"made anew": {func(t *testing.T, w *world, _ string) { aside(t, w); must(t, os.Mkdir(w.dir, 0o700)) }, bring},
		"mounted over": {
			func(t *testing.T, w *world, _ string) { mount(t, "tmpfs", w.dir, "tmpfs", 0, "mode=0700") },
			func(t *testing.T, w *world) { unmount(t, w.dir) },
		},
		"a backup": {func(t *testing.T, w *world, backup string) { aside(t, w); copyTree(t, backup, w.dir) }, bring},
		"its sandbox is removed": {func(t *testing.T, w *world, _ string) {
			place := filepath.Dir(w.placeFiles()[0])
			rename(t, place, filepath.Join(filepath.Dir(w.dir), filepath.Base(place)))
		}, func(t *testing.T, w *world) {
			place := glob(filepath.Dir(w.dir), "place-*")[0]
			rename(t, place, filepath.Join(w.dir, filepath.Base(place)))
		}},
		"removed, and its parent is a link": {func(t *testing.T, w *world, _ string) {
			aside(t, w)
			link := filepath.Join(t.TempDir(), "link")
			must(t, os.Symlink(filepath.Dir(w.dir), link))
			w.dir = filepath.Join(link, "D")
		}, bring},
		"removed, and its parent is mounted elsewhere": {func(t *testing.T, w *world, _ string) {
			aside(t, w)
			other := t.TempDir()
			mount(t, filepath.Dir(w.dir), other, "", unix.MS_BIND, "")
			w.dir = filepath.Join(other, "D")
		}, func(t *testing.T, w *world) {
			bring(t, w)
			unmount(t, filepath.Dir(w.dir))
		}},
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestAJobWhoseDirectoryVanishesIsNotStartedTwice, with its supervisor and without; and it is taken
// supervised again once its directory is back.
func TestAJobWhoseDirectoryVanishesIsNotStartedTwice(t *testing.T) {
	testenv.Parallel(t)
	for name, v := range vanishes() {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newWorld(t)
				w.flags = []string{"--every", "0"}
				r := w.run()
				w.ticks(3)
				w.checkpoint()
				r.awaits("the trial is over, after which nothing is written", func() bool { _, over := w.last(jobs.EventTrial); return over })
				backup := filepath.Join(t.TempDir(), "backup")
				copyTree(t, w.dir, backup)
				for _, place := range glob(backup, "place-*") {
					must(t, os.RemoveAll(place))
				}
				dir := w.dir
				v.do(t, w, backup)
				before := tree(t, w.dir)
				w.run().ends(125, "D already runs here, under cucriu run (process ")
				if after := tree(t, w.dir); after != before {
					t.Errorf("a refused command has changed %s: it was\n%s\nand is\n%s", w.dir, before, after)
				}
				r.kill()
				w.run().ends(125, "runs on this host", "kill -9 ")
				if after := tree(t, w.dir); after != before {
					t.Errorf("a refused command has changed %s: it was\n%s\nand is\n%s", w.dir, before, after)
				}
				w.ticks(3)
				w.onlyOnce(t)
				v.undo(t, w)
				w.dir = dir
				r = w.run()
				r.says("it is supervised again")
				w.onlyOnce(t)
				w.checkpoint()
				w.finish(r)
				if again := inOrder(t, w); again != 0 {
					t.Errorf("%d ticks were done twice", again)
				}
			})
		})
	}
}

// tree lists the files of a directory; "" if there is none.
func tree(t *testing.T, dir string) string {
	t.Helper()
	if !testenv.Exists(dir) {
		return ""
	}
	out, err := exec.Command("find", dir, "-type", "f", "-not", "-name", "events.jsonl", "-not", "-name", "output.log", "-printf", "%P %s %T@\n").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func (w *world) checkpoint() {
	w.t.Helper()
	if out, err := w.host.Cucriu("jobs", "checkpoint", w.dir); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
}

// TestABackupInThePlaceOfTheDirectoryEndsNothing: it has an earlier owner, and an earlier fence.
func TestABackupInThePlaceOfTheDirectoryEndsNothing(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		r := w.run()
		w.ticks(3)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		backup := filepath.Join(t.TempDir(), "backup")
		copyTree(t, w.dir, backup)
		r = w.goesOn(w.newest())
		verified := filepath.Join(w.dir, "checkpoints", w.newest(), "verified.json")
		r.awaits("the checkpoint is verified, after which nothing is written", func() bool { return testenv.Exists(verified) })
		aside := w.dir + ".aside"
		rename(t, w.dir, aside)
		rename(t, backup, w.dir)
		// Both the supervisor and the place look every few seconds.
		out, err := w.host.Cucriu("jobs", "checkpoint", w.dir)
		if err == nil || !strings.Contains(out, "it was replaced by an earlier copy") {
			t.Errorf("%v: %s", err, out)
		}
		begun := w.report().UpMS
		testenv.Eventually(t, 3*testenv.Soon, "a look", func() bool { return w.report().UpMS > begun+6000 })
		w.onlyOnce(t)
		remove(t, w.dir)
		rename(t, aside, w.dir)
		w.checkpoint()
		w.finish(r)
		if again := inOrder(t, w); again != 0 {
			t.Errorf("%d ticks were done twice", again)
		}
	})
}

// TestTheLaterOfTwoPlacesIsLeft although this host knows nothing of the earlier one.
func TestTheLaterOfTwoPlacesIsLeft(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		w.flags, w.command = []string{"--every", "0"}, []string{"/bin/sleep", "1000"}
		r := w.run()
		r.says("D: /bin/sleep")
		place := w.place()
		r.kill()
		must(t, os.RemoveAll(filepath.Dir(w.placeFiles()[0])))
		must(t, os.RemoveAll(w.host.RunDir))
		r = w.run()
		r.says("D: /bin/sleep")
		testenv.Eventually(t, 3*testenv.Soon, "the first sandbox has ended", func() bool { return !testenv.Exists(fmt.Sprintf("/proc/%d", place.Init.PID)) })
		w.onlyOnce(t)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		w.nothingLeft()
	})
}
