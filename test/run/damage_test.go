package run

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cucriu/internal/jobs"
	"cucriu/internal/testenv"
)

// TestADamagedCheckpointIsNamedAndTheOneBeforeTaken, however it is damaged. It takes some of the files;
// the store's own test has each of them damaged and named.
func TestADamagedCheckpointIsNamedAndTheOneBeforeTaken(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		w.flags = []string{"--every", "0"}
		r := w.run()
		w.checks()
		w.checkpoint() // both are read again before they are damaged
		w.checkpoint()
		r.killsAll()
		all := w.checkpoints()
		newest, before := all[len(all)-1], all[len(all)-2]
		dir, good := filepath.Join(w.dir, "checkpoints", newest), filepath.Join(t.TempDir(), "good")
		testenv.Copy(t, dir, good)
		files := filepath.Join(t.TempDir(), "files")
		testenv.Copy(t, w.work, files)
		for i, file := range filesOf(t, dir) {
			if i%5 != 0 {
				continue
			}
			damage := damages[i%len(damages)]
			t.Logf("%s: %s", damage.name, file)
			damage.do(t, filepath.Join(dir, file))
			r := w.run()
			r.resumed(before)
			if e, found := w.last(jobs.EventFailed); !found || e.Checkpoint != newest || !strings.Contains(e.Message, named(file)) || !strings.Contains(e.Message, "trying checkpoint "+before) {
				t.Errorf("the damage of %s is not named: %q", file, e.Message)
			}
			r.awaits("the newest is given up", func() bool { return testenv.Exists(filepath.Join(dir, "given-up.json")) })
			if out, _ := w.host.Cucriu("jobs", "list", w.dir); !strings.Contains(out, "given up for an older one: ") && !strings.Contains(out, "damaged") {
				t.Errorf("jobs list does not show it: %s", out)
			}
			r.killsAll()
			restoreFile(t, good, dir, file)
			if i == 0 {
				r := w.goesOn(before) // and not the one that was given up
				r.killsAll()
			}
			if err := os.Remove(filepath.Join(dir, "given-up.json")); err != nil {
				t.Errorf("the newest was not given up: %v", err)
			}
			for _, file := range []string{"ticks", "page"} {
				restoreFile(t, files, w.work, file)
			}
		}
		w.finish(w.goesOn(newest))
	})
}

// TestWithoutAWholeCheckpointNothingIsStartedAnew.
func TestWithoutAWholeCheckpointNothingIsStartedAnew(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run()
		r.verified(2)
		r.killsAll()
		before := w.report().Tick
		for _, name := range w.checkpoints() {
			damages[1].do(t, filepath.Join(w.dir, "checkpoints", name, "pages-1.img"))
		}
		w.run().ends(125, "was neither resumed nor started anew", w.checkpoints()[0]+" is damaged: pages-1.img", "--yes removes the job, then cucriu run starts it anew")
		if now := w.report().Tick; now != before {
			t.Errorf("the job was at tick %d, and is at %d", before, now)
		}
		w.noProcesses()
	})
}

// named is how the message names a file. criu's pages of the GPU are named by their process.
func named(file string) string {
	if strings.HasPrefix(file, "cucriu-pages-") {
		return "damaged"
	}
	return file
}

// filesOf lists the files of a checkpoint whose damage matters: not the marks.
func filesOf(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || slices.Contains([]string{"verified.json", "trial.json"}, entry.Name()) {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if info, infoErr := entry.Info(); infoErr == nil && info.Size() > 0 {
			files = append(files, name)
		}
		return err
	})
	if err != nil || len(files) < 10 {
		t.Fatalf("files of %s: %v %v", dir, files, err)
	}
	return files
}

// damages are what can become of a file. The content of a file that is hard-linked elsewhere must
// stay there.
var damages = []struct {
	name string
	do   func(t *testing.T, path string)
}{
	{"truncated", func(t *testing.T, path string) {
		rewrite(t, path, func(data []byte) []byte { return data[:len(data)/2] })
	}},
	{"a bit flipped", func(t *testing.T, path string) {
		rewrite(t, path, func(data []byte) []byte { data[len(data)/2] ^= 1; return data })
	}},
	{"removed", func(t *testing.T, path string) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}},
}

func rewrite(t *testing.T, path string, change func(data []byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.Remove(path)
	}
	if err == nil {
		err = os.WriteFile(path, change(data), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func restoreFile(t *testing.T, from, to, file string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(from, file))
	if err == nil {
		_ = os.Remove(filepath.Join(to, file))
		err = os.WriteFile(filepath.Join(to, file), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
