package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"cucriu/hooks/checkpoint"
	"cucriu/internal/core/journal"
	"cucriu/internal/testenv"
)

// report is what cucriu status --json prints.
type report struct {
	Sessions []checkpoint.Status
	Refusals []journal.Refusal
}

func (b *bench) status(t *testing.T) report {
	t.Helper()
	stdout, stderr, status := b.run(t, "status", "--json")
	var r report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || status != 0 {
		t.Fatalf("exit status %d: %v\n%s%s", status, err, stdout, stderr)
	}
	return r
}

// TestStatusKeepsWhyAPlainCriuWasRefused: criu itself says only that its action script failed.
func TestStatusKeepsWhyAPlainCriuWasRefused(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		forked := b.Start(1, "--gpus", "1", "--io-uring")
		for range 2 {
			if b.TryDump(forked, b.path("refused")).Err == nil {
				t.Fatal("criu dumps an io_uring")
			}
		}
		kept := b.status(t).Refusals
		if len(kept) != 1 {
			t.Fatalf("%d refusals are kept, want one: %+v", len(kept), kept)
		}
		r := kept[0]
		if r.Kind != journal.KindDump || r.Times != 2 || r.RootPID != forked.PID || r.Process != "cudawork" || r.CriuPID == 0 || !r.First.Before(r.Last) ||
			!testenv.Exists(r.ImageDir) || len(r.Findings) != 1 || r.Findings[0].Name != "io-uring" || r.Findings[0].Remedy == "" {
			t.Errorf("kept is %+v", r)
		}
		stdout, _, _ := b.run(t, "status")
		for _, says := range []string{" dump  2      " + forked.Root() + " (cudawork)  " + b.path("refused"), "io-uring: process " + forked.Root()} {
			if !strings.Contains(stdout, says) {
				t.Errorf("cucriu status does not say %q:\n%s", says, stdout)
			}
		}

		// A restore, too, and a path that is gone is not shown.
		b.dumped(t, b.Start(1, "--gpus", "1"))
		b.damaged(t, "other", func(dir string) error { return os.WriteFile(filepath.Join(dir, "cucriu.json"), []byte("{"), 0o600) })
		if b.TryRestore(b.path("other")).Err == nil {
			t.Fatal("a damaged image is restored")
		}
		if kept := b.status(t).Refusals; len(kept) != 2 || kept[1].Kind != journal.KindRestore || kept[1].ImageDir != b.path("other") || !strings.Contains(kept[1].Text(), b.path("other/cucriu.json")+" is damaged") {
			t.Errorf("kept is %+v", kept)
		}
		if err := os.RemoveAll(b.path("other")); err != nil {
			t.Fatal(err)
		}
		if stdout, _, _ := b.run(t, "status"); strings.Contains(stdout, b.path("other")+"\n    ") {
			t.Errorf("cucriu status shows a directory that is gone:\n%s", stdout)
		}
		b.job.Runs()
	})
}

// TestStatusOfAnImageEndsWithWhatBecameOfIt, also where criu itself says that all is well.
func TestStatusOfAnImageEndsWithWhatBecameOfIt(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		other := b.Dump(b.Start(1, "--gpus", "1"))
		is := func(status int, says string) {
			t.Helper()
			stdout, stderr, got := b.run(t, "status", "-D", "images")
			if got != status || !strings.Contains(stdout+stderr, says) || strings.Contains(stdout, other) {
				t.Errorf("exit status %d, want %d and %q\n%s%s", got, status, says, stdout, stderr)
			}
			stdout, _, got = b.run(t, "status", "-D", b.path("images"), "--json")
			var r report
			if err := json.Unmarshal([]byte(stdout), &r); err != nil || got != status || r.Sessions == nil || r.Refusals == nil {
				t.Errorf("exit status %d, %v\n%s", got, err, stdout)
			}
		}
		is(3, "no dump into ")
		b.Faults("checkpoint hang")
		cmd, _ := b.start(t, "dump", "-t", b.job.Root(), "-D", "images", "-R")
		testenv.Eventually(t, testenv.Soon, "a dump is under way", atStepOf(b, "checkpoint"))
		is(4, "it is at step checkpoint") // it has another name until it is complete
		b.Faults()
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(b.path("images")); err != nil {
			t.Fatal(err)
		}
		b.Faults("checkpoint return 999")
		if b.TryDump(b.job, b.path("images")).Err == nil {
			t.Fatal("it is dumped")
		}
		is(1, "the last dump did not succeed")
		b.Faults()
		if run := b.TryDump(b.job, b.path("images")); run.Err != nil {
			t.Fatal(run.Lines())
		}
		b.WaitOutcome("dumped") // the watcher closes the session when criu has ended
		is(0, "dumped")
		testenv.Eventually(t, testenv.Soon, "the job is reaped", b.job.Gone)
		b.Faults("restore return 999")
		if run := b.TryRestore(b.path("images")); run.Err != nil {
			t.Fatalf("criu does not ignore what fails last: %s", run.Lines())
		}
		is(1, "the last restore did not succeed")
		b.Faults()
		manifest := b.path("images/cucriu.json")
		if err := os.Rename(manifest, manifest+".whole"); err != nil {
			t.Fatal(err)
		}
		testenv.WriteFile(t, manifest, "{")
		if b.TryRestore(b.path("images")).Err == nil {
			t.Fatal("a damaged image is restored")
		}
		is(3, "the last restore was refused")
		if err := os.Rename(manifest+".whole", manifest); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "the half-restored job is reaped", b.job.Gone)
		b.Restore(b.path("images"))
		is(0, "running")
	})
}

// TestARefusalIsKeptUntilTheSameIsBegun, and only the last ones are.
func TestARefusalIsKeptUntilTheSameIsBegun(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		root := b.job.Root()
		b.write(t, "full/precious", "")
		b.run(t, "dump", "-t", root, "-D", "full")
		b.run(t, "restore", "-D", "full")
		if n := len(b.status(t).Refusals); n != 2 {
			t.Fatalf("%d refusals are kept, want 2", n)
		}
		if _, stderr, status := b.run(t, "dump", "-t", root, "-D", "images", "-R"); status != 0 {
			t.Fatal(stderr)
		}
		if kept := b.status(t).Refusals; len(kept) != 1 || kept[0].Kind != journal.KindRestore {
			t.Errorf("after a dump of the same job, kept is %+v", kept)
		}
		for i := range 20 {
			b.run(t, "restore", "-D", "nowhere-"+strconv.Itoa(i))
		}
		kept := b.status(t).Refusals
		if len(kept) != 16 || !strings.HasSuffix(kept[15].ImageDir, "nowhere-19") {
			t.Errorf("%d refusals are kept, want the last 16", len(kept))
		}
		// Those of more than a day ago are only counted.
		for i := range kept[:10] {
			kept[i].Last = kept[i].Last.Add(-25 * time.Hour)
		}
		data, err := json.Marshal(kept)
		if err != nil {
			t.Fatal(err)
		}
		testenv.WriteFile(t, filepath.Join(b.RunDir, "refused.json"), string(data))
		for _, some := range []struct {
			args  []string
			shown int
			says  bool
		}{{[]string{"status"}, 6, true}, {[]string{"status", "--all"}, 16, false}} {
			stdout, stderr, status := b.run(t, some.args...)
			shown := strings.Count(stdout, " restore ")
			if status != 0 || shown != some.shown || strings.Contains(stdout, "not listed: 10 (--all") != some.says {
				t.Errorf("%v shows %d refusals, want %d; status %d\n%s%s", some.args, shown, some.shown, status, stdout, stderr)
			}
		}
		// What nobody can read is no reason to refuse anything.
		testenv.WriteFile(t, filepath.Join(b.RunDir, "refused.json"), "{")
		b.make(t, mistake{"damaged", []string{"status"}, 0, "running"})
		if _, stderr, status := b.run(t, "dump", "-t", root, "-D", "again", "-R"); status != 0 {
			t.Error(stderr)
		}
	})
}

// TestStatusKeepsWhyTheHookFailed, step and cause.
func TestStatusKeepsWhyTheHookFailed(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		b.Faults("checkpoint return 999")
		if b.TryDump(b.job, b.path("images")).Err == nil {
			t.Fatal("it is dumped")
		}
		b.Faults()
		if message := b.status(t).Sessions[0].Message; !strings.HasPrefix(message, "the dump failed at step checkpoint: cuCheckpointProcessCheckpoint of process "+b.job.Root()+": CUDA_ERROR_UNKNOWN (999)") ||
			!strings.HasSuffix(message, "; the job keeps running") {
			t.Errorf("the session says %q", message)
		}
		if _, stderr, status := b.run(t, "suspend", "-p", b.job.Root()); status != 0 {
			t.Fatal(stderr)
		}
		b.Faults("restore return 999")
		_, stderr, status := b.run(t, "resume", "-p", b.job.Root())
		oneError(t, stderr, "CUDA_ERROR_UNKNOWN (999)")
		b.Faults()
		sessions := b.status(t).Sessions
		if last := sessions[len(sessions)-1]; status != 1 || !last.Suspended() || !strings.HasPrefix(last.Message, "the last resume failed: restore: ") {
			t.Errorf("exit status %d, and the session says %s: %q", status, last.Step, last.Message)
		}
		if _, stderr, status := b.run(t, "resume", "-p", b.job.Root()); status != 0 {
			t.Fatal(stderr)
		}
		b.job.Runs()
	})
}

// TestRecoverNamesAFailingWatcher: it leaves the job to it, and does not say that there is
// nothing to recover.
func TestRecoverNamesAFailingWatcher(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		b.Setenv("CUCRIU_CONFIG", b.Config("version: 1\nlock: {timeout: 6s, try: 1s}\n"))
		b.Faults("checkpoint return 999", "unlock return 999")
		_, stderr, status := b.run(t, "dump", "-t", b.job.Root(), "-D", "images")
		if status != 4 || !strings.Contains(stderr, "the job is not recovered yet") {
			t.Fatalf("exit status %d\n%s", status, stderr)
		}
		stdout, stderr, status := b.run(t, "recover")
		oneError(t, stderr, "its watcher keeps trying: unlock: ")
		if status != 4 || strings.Contains(stdout, "nothing to recover") {
			t.Errorf("exit status %d\n%s", status, stdout)
		}
		var listed []checkpoint.Status
		stdout, _, _ = b.run(t, "recover", "--json")
		if err := json.Unmarshal([]byte(stdout), &listed); err != nil || len(listed) != 1 || !listed[0].NotBack {
			t.Errorf("%v\n%s", err, stdout)
		}
		b.Faults()
		b.WaitOutcome("running")
		if stdout, _, status := b.run(t, "recover"); status != 0 || !strings.Contains(stdout, "nothing to recover") {
			t.Errorf("exit status %d\n%s", status, stdout)
		}
		b.job.Runs()
	})
}

// TestTablesFit: in 100 columns, where no path is longer.
func TestTablesFit(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		several := b.Start(4, "--gpus", "0,1", "--procs", "4")
		b.Setenv("COLUMNS", "")
		b.Setenv("CUCRIU_CONFIG", b.Config("version: 1\nlock: {timeout: 60s}\nforce: [gpu-in-use]\n"))
		if _, stderr, status := b.run(t, "dump", "-t", several.Root(), "-D", "images", "-R"); status != 0 {
			t.Fatal(stderr)
		}
		b.run(t, "dump", "-t", several.Root(), "-D", "images")
		both := b.Start(1, "--gpus", "0,1")
		if _, stderr, status := b.run(t, "suspend", "-p", both.Root()); status != 0 {
			t.Fatal(stderr)
		}
		for _, args := range [][]string{
			{"status"},
			{"gpus"},
			{"check"},
			{"check", "-t", several.Root(), "-D", "images"},
			{"check", "-D", "images"},
			{"inspect", "images"},
			{"inspect", "--timeline", "images"},
			{"state", "-p", both.Root(), "-p", b.job.Root()},
			{"map", "-D", "images"},
			{"status", "--uuid"},
			{"gpus", "--uuid"},
			{"inspect", "--uuid", "images"},
			{"map", "--uuid", "-D", "images"},
			{"state", "--uuid", "-p", b.job.Root()},
		} {
			stdout, _, _ := b.run(t, args...)
			if strings.Count(stdout, "\n") < 2 {
				t.Errorf("%v is no table:\n%s", args, stdout)
			}
			for line := range strings.Lines(stdout) {
				line = strings.TrimSuffix(line, "\n")
				if utf8.RuneCountInString(line) > 100 && !strings.Contains(line, "/") {
					t.Errorf("%v: a line of %d columns:\n%s", args, utf8.RuneCountInString(line), line)
				}
			}
			if uuids := slices.Contains(args, "--uuid"); strings.Contains(stdout, "GPU-") != uuids {
				t.Errorf("%v: UUIDs are shown: %v\n%s", args, !uuids, stdout)
			}
		}
		if _, stderr, status := b.run(t, "resume", "-p", both.Root()); status != 0 {
			t.Fatal(stderr)
		}
	})
}
