package run

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestAMountOfTheJobIsNotLost: its sandbox ends with it. What is mounted there before is the host's.
func TestAMountOfTheJobIsNotLost(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		w.command = []string{"sh", "-c", `cd "$0"; mkdir at; mount -t tmpfs none at; : >at/file; : >begun; until [ -e free ]; do sleep 0.1; done; umount at; : >freed; until [ -e stop ]; do sleep 0.1; done`, w.work}
		w.flags = []string{"--every", "0"}
		r := w.run()
		r.awaits("it is mounted", func() bool { return testenv.Exists(filepath.Join(w.work, "begun")) })
		out, err := w.host.Cucriu("jobs", "stop", w.dir)
		if err == nil || !strings.Contains(out, "has mounted or unmounted something on "+filepath.Join(w.work, "at")) || !strings.Contains(out, "keeps running") {
			t.Fatalf("%v: %s", err, out)
		}
		testenv.WriteFile(t, filepath.Join(w.work, "free"), "")
		r.awaits("it is unmounted", func() bool { return testenv.Exists(filepath.Join(w.work, "freed")) })
		if out, err := w.host.Cucriu("jobs", "stop", w.dir); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		r = w.run()
		r.says("D resumes from checkpoint")
		w.stop(0)
		r.ends(0)
	})
}

// TestTheJobSeesWhatTheHostMounts, as from an automounter, and gets its checkpoints. What it binds itself is still its own.
func TestTheJobSeesWhatTheHostMounts(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		shared := filepath.Join(w.work, "shared")
		mount := func(args ...string) {
			t.Helper()
			if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
				t.Fatalf("mount %q: %v: %s", args, err, out)
			}
		}
		for _, dir := range []string{shared, filepath.Join(w.work, "bound")} {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		mount("-t", "tmpfs", "none", shared)
		t.Cleanup(func() { _ = exec.Command("umount", "-R", shared).Run() })
		mount("--make-shared", shared)
		w.command = []string{"sh", "-c", `cd "$0"; : >begun; until [ -e shared/later/file ]; do sleep 0.1; done; : >seen; ` +
			`until [ -e bind ]; do sleep 0.1; done; mount --bind shared bound; : >isbound; until [ -e stop ]; do sleep 0.1; done`, w.work}
		w.flags = []string{"--every", "0"}
		r := w.run()
		r.awaits("it has begun", func() bool { return testenv.Exists(filepath.Join(w.work, "begun")) })
		later, other := filepath.Join(shared, "later"), filepath.Join(shared, "other")
		if err := errors.Join(os.Mkdir(later, 0o755), os.Mkdir(other, 0o755)); err != nil {
			t.Fatal(err)
		}
		mount("-t", "tmpfs", "none", later)
		mount("--bind", later, other) // what another mount follows, too
		testenv.WriteFile(t, filepath.Join(later, "file"), "")
		r.awaits("it sees what is mounted", func() bool { return testenv.Exists(filepath.Join(w.work, "seen")) })
		for _, then := range [][]string{nil, {"--make-private", shared}} {
			if then != nil {
				mount(then...)
			}
			if out, err := w.host.Cucriu("jobs", "checkpoint", w.dir); err != nil {
				t.Fatalf("%q: %v: %s", then, err, out)
			}
		}
		testenv.WriteFile(t, filepath.Join(w.work, "bind"), "")
		r.awaits("it has bound a directory", func() bool { return testenv.Exists(filepath.Join(w.work, "isbound")) })
		if out, err := w.host.Cucriu("jobs", "checkpoint", w.dir); err == nil || !strings.Contains(out, filepath.Join(w.work, "bound")) {
			t.Fatalf("%v: %s", err, out)
		}
		w.stop(0)
		r.ends(0)
	})
}
