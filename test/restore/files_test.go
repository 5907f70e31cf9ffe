package restore

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// writer is a job with a log, that was not opened to append, a file and a directory.
type writer struct {
	*testenv.Job
	dir string
}

func startWriter(t *testing.T, host *testenv.Host) *writer {
	t.Helper()
	dir := t.TempDir()
	for _, path := range []string{"work", "open"} {
		if err := os.Mkdir(filepath.Join(dir, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	testenv.WriteFile(t, filepath.Join(dir, "data"), "data")
	if err := os.Chmod(filepath.Join(dir, "data"), 0o644); err != nil {
		t.Fatal(err)
	}
	const script = `cd "$0"/work; exec 3>../log 4<../data 5<../open
		(while :; do n=$((n + 1)); echo line $n >&3; sleep 0.02; done) & exec "$@" 3>&- `
	w := &writer{dir: dir, Job: host.StartUnder([]string{"/bin/sh", "-c", script, dir}, 1)}
	return w
}

func (w *writer) at(base string) string { return filepath.Join(w.dir, base) }

func (w *writer) log(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(w.at("log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// wrote fails the test unless the log has all lines, once.
func (w *writer) wrote(t *testing.T) {
	t.Helper()
	n := 0
	for line := range strings.Lines(w.log(t)) {
		if n++; line != fmt.Sprintf("line %d\n", n) && strings.HasSuffix(line, "\n") {
			t.Fatalf("line %d of the log is %q", n, line)
		}
	}
}

// TestFilesThatDifferAreFoundBeforeTheRestore, and the restore works once they are as they were.
func TestFilesThatDifferAreFoundBeforeTheRestore(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		w := startWriter(t, host)
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", w.Root(), "-D", images)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, change := range []struct {
			says     string
			do, undo func() error
		}{
			{
				w.at("data") + " has 8 bytes, but had 4 at the dump",
				func() error { return os.WriteFile(w.at("data"), []byte("new data"), 0) },
				func() error { return os.WriteFile(w.at("data"), []byte("data"), 0) },
			},
			{
				w.at("data") + " has mode 0600, but had 0644 at the dump",
				func() error { return os.Chmod(w.at("data"), 0o600) }, func() error { return os.Chmod(w.at("data"), 0o644) },
			},
			{
				w.at("data") + ", which the job uses, cannot be found",
				func() error { return os.Rename(w.at("data"), w.at("away")) }, func() error { return os.Rename(w.at("away"), w.at("data")) },
			},
			{
				w.at("open") + " has mode 0700, but had 0755 at the dump",
				func() error { return os.Chmod(w.at("open"), 0o700) }, func() error { return os.Chmod(w.at("open"), 0o755) },
			},
			{
				w.at("work") + ", which the job has open or as its working directory, cannot be found",
				func() error { return os.Rename(w.at("work"), w.at("away")) }, func() error { return os.Rename(w.at("away"), w.at("work")) },
			},
		} {
			must(change.do())
			for _, out := range []string{testenv.Exits(t, host, testenv.StatusRefused, "check", "-D", images), testenv.Exits(t, host, testenv.StatusRefused, "restore", "-D", images)} {
				if strings.Count(out, change.says) != 1 {
					t.Errorf("want %q once:\n%s", change.says, out)
				}
			}
			must(change.undo())
		}
		if sessions := host.Sessions(); len(sessions) != 1 {
			t.Errorf("a restore has begun: %+v", sessions)
		}
		testenv.Exits(t, host, 0, "check", "-D", images)
		testenv.Exits(t, host, 0, "restore", "-D", images)
		w.Runs()
		w.wrote(t)
	})
}

// TestALogThatHasGrownIsCutOnRequest, and is as before if the restore fails, whoever is killed.
func TestALogThatHasGrownIsCutOnRequest(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		w := startWriter(t, host)
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", w.Root(), "-D", images, "--leave-running")
		before := len(w.log(t)) // a job that runs on writes on
		testenv.Eventually(t, testenv.Soon, "the log grows", func() bool { return len(w.log(t)) > before })
		w.Kill()
		grown, dumped := w.log(t), contents(t, images)
		unwritten := func(when string) {
			t.Helper()
			if now := contents(t, images); !maps.Equal(now, dumped) {
				t.Errorf("%s the image has changed: it had %d files, and has %d: %v", when, len(dumped), len(now),
					slices.Sorted(maps.Keys(now)))
			}
		}
		records := func() (found []string) {
			found, _ = filepath.Glob(filepath.Join(host.RunDir, "cut-logs", "*"))
			return found
		}
		as := func(when string) {
			t.Helper()
			unwritten(when)
			if left := records(); len(left) > 0 {
				t.Errorf("%s %v are left", when, left)
			}
			kept, _ := filepath.Glob(w.at("log.*"))
			if w.log(t) != grown || len(kept) > 0 {
				t.Errorf("%s the log had %d bytes, and has %d; beside it are %v", when, len(grown), len(w.log(t)), kept)
			}
		}
		for _, out := range []string{testenv.Exits(t, host, testenv.StatusRefused, "check", "-D", images), testenv.Exits(t, host, testenv.StatusRefused, "restore", "-D", images)} {
			if says := fmt.Sprintf("%s has %d bytes", w.at("log"), len(grown)); strings.Count(out, says) != 1 || !strings.Contains(out, "--cut-logs") {
				t.Errorf("want %q once, and --cut-logs:\n%s", says, out)
			}
		}
		as("refused,")
		host.UseFailpoint("restore.back.fill=error")
		testenv.Exits(t, host, 1, "restore", "--cut-logs", "-D", images)
		as("after a restore that failed")
		kill := func(step string) {
			t.Helper()
			host.UseFailpoint(step + "=kill")
			cmd := host.CucriuCommand("restore", "--cut-logs", "-D", images)
			if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != -1 {
				t.Fatalf("killed at %s: %v\n%s", step, err, out)
			}
			host.Setenv("CUCRIU_FAILPOINT", "")
			testenv.Eventually(t, testenv.Soon, "nobody is at work on it", func() bool { _, err := host.Cucriu("recover"); return err == nil })
		}
		for step, earlier := range map[string]bool{ // an earlier version has written its record into the image
			"restore.pre-restore": false, "restore.pre-resume": true,
		} {
			kill(step)
			testenv.Eventually(t, testenv.Soon, "no process of the job is left", w.Gone)
			unwritten("killed at " + step)
			if found := records(); len(found) != 1 || len(w.log(t)) >= len(grown) {
				t.Fatalf("killed at %s: the log has %d bytes of %d; records: %v", step, len(w.log(t)), len(grown), found)
			}
			if earlier {
				if err := os.Rename(records()[0], filepath.Join(images, "cucriu-undo.json")); err != nil {
					t.Fatal(err)
				}
			}
			testenv.Exits(t, host, testenv.StatusRefused, "restore", "-D", images)
			as("killed at " + step)
		}
		ends := func() {
			t.Helper()
			w.Runs()
			w.wrote(t)
			w.Kill()
		}
		kill("restore.back.fill") // and brought to its end
		testenv.Exits(t, host, testenv.StatusRefused, "restore", "-D", images)
		ends()
		kept, _ := filepath.Glob(w.at("log.cucriu-*"))
		if len(kept) != 1 {
			t.Fatalf("kept: %v", kept)
		}
		if newer, err := os.ReadFile(kept[0]); err != nil || !strings.HasSuffix(grown, string(newer)) || len(newer) == 0 {
			t.Errorf("%s is not what was newer (%v)", kept[0], err)
		}
		testenv.Exits(t, host, 0, "restore", "--cut-logs", "-D", images)
		ends()
		unwritten("in the end")
		if left := records(); len(left) > 0 {
			t.Errorf("left over: %v", left)
		}
		if info, err := os.Stat(filepath.Join(host.RunDir, "cut-logs")); err != nil || info.Mode().Perm() != 0o700 {
			t.Error(info, err)
		}
	})
}
