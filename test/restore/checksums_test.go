package restore

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cucriu/internal/core/journal"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/testenv"
)

// flipped changes a byte in the middle of the largest file of criu's pages, and returns what puts it back.
func flipped(t *testing.T, images string) (name string, putBack func()) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(images, "pages-*.img"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%q, %v", files, err)
	}
	var path string
	var good []byte
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > len(good) {
			path, good = file, data
		}
	}
	bad := bytes.Clone(good)
	bad[len(bad)/2] ^= 0x10
	write := func(data []byte) {
		t.Helper()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(bad)
	return filepath.Base(path), func() { write(good) }
}

// contents reads all of an image.
func contents(t *testing.T, images string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	entries, err := os.ReadDir(images)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(images, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[entry.Name()] = string(data)
	}
	return all
}

// TestADamagedImageIsNotRestored: a byte of the job's memory has changed on the disk. criu does not notice.
func TestADamagedImageIsNotRestored(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		testenv.Eventually(t, testenv.Soon, "the job has ended", job.Gone)
		const intact = " is complete and undamaged: "
		if says := testenv.Exits(t, host, 0, "verify", images); !strings.Contains(says, intact) {
			t.Errorf("verify: %s", says)
		}
		name, putBack := flipped(t, images)
		damage := name + ": checksum mismatch: copy the image again from its source, or restore another one"
		says := testenv.Exits(t, host, 1, "verify", images)
		if !strings.Contains(says, damage) || strings.Contains(says, "undamaged") {
			t.Errorf("verify of a damaged image: %s", says)
		}
		if says := testenv.Exits(t, host, 1, "verify", "--json", images); !strings.Contains(says, `"checksums": true`) {
			t.Errorf("verify --json of a damaged image: %s", says)
		}
		before := contents(t, images)
		says = testenv.Exits(t, host, 1, "restore", "-D", images)
		if !strings.Contains(says, damage) || !strings.Contains(says, "this restore has left nothing running, and the image is unchanged") {
			t.Errorf("restore of a damaged image: %s", says)
		}
		testenv.Eventually(t, testenv.Soon, "the half-restored job is gone", job.Gone)
		dedup := filepath.Join(t.TempDir(), "criu.conf") // it would remove from the image what criu has read
		testenv.WriteFile(t, dedup, "auto-dedup\n")
		says = testenv.Exits(t, host, 1, "restore", "-D", images, "--criu-config", dedup)
		if !strings.Contains(says, damage) {
			t.Errorf("restore with auto-dedup: %s", says)
		}
		if got := host.RestoreOutcome(); got == "" || got == string(journal.OutcomeRunning) {
			t.Errorf("the outcome is %q", got)
		}
		testenv.NoWatcher(t, host)
		for file, data := range contents(t, images) {
			if before[file] != data {
				t.Errorf("%s was changed", file)
			}
		}
		if pids := testenv.NotEnding(testenv.Running("cudawork")); len(pids) > 0 {
			t.Errorf("processes %v are left", pids)
		}

		// Whoever has no other copy decides.
		if err := os.Rename(filepath.Join(images, imagedir.SumsName), filepath.Join(images, "aside")); err != nil {
			t.Fatal(err)
		}
		says = testenv.Exits(t, host, 0, "verify", images)
		if !strings.Contains(says, "criu's files: no checksums") || strings.Contains(says, "undamaged") {
			t.Errorf("verify without checksums: %s", says)
		}
		if err := os.Rename(filepath.Join(images, "aside"), filepath.Join(images, imagedir.SumsName)); err != nil {
			t.Fatal(err)
		}
		putBack()
		testenv.Exits(t, host, 0, "verify", images)
		testenv.Exits(t, host, 0, "restore", "-D", images)
		job.Runs()

		left := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", left, "--leave-running")
		if says := testenv.Exits(t, host, 0, "verify", left); !strings.Contains(says, intact) {
			t.Errorf("verify of what a dump made that left the job running: %s", says)
		}
		job.Runs()
	})
}

// TestPlainCriuChecksAnImageIfTheConfigurationSaysSo: it takes time in which the job is stopped.
func TestPlainCriuChecksAnImageIfTheConfigurationSaysSo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		used := testenv.DumpAndLeave(t, host, job, "-R")
		job.Runs()
		if run := host.TryDump(job, used, "-R"); run.Err != nil { // over an image that has checksums
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		host.WaitOutcome(string(journal.OutcomeRunning))
		job.Runs()
		if says := testenv.Exits(t, host, 0, "verify", used); !strings.Contains(says, "criu's files: no checksums") {
			t.Errorf("verify without checksums: %s", says)
		}
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nchecksums: true\n"))
		images := host.Dump(job)
		testenv.Eventually(t, testenv.Soon, "the job has ended", job.Gone)
		if says := testenv.Exits(t, host, 0, "verify", images); !strings.Contains(says, "is complete and undamaged") {
			t.Errorf("verify: %s", says)
		}
		name, putBack := flipped(t, images)
		run := host.TryRestore(images)
		damage := "image " + images + ": " + name + ": checksum mismatch: copy the image again"
		if run.Err == nil || !strings.Contains(run.Log, damage) {
			t.Errorf("restore of a damaged image: %v\n%s", run.Err, run.Lines())
		}
		if !job.Gone() {
			t.Error("something of a damaged image was restored")
		}
		putBack()
		if run := host.TryRestore(images, "--auto-dedup"); run.Err != nil { // which empties the image meanwhile
			t.Fatalf("criu restore: %v\n%s", run.Err, run.Lines())
		}
		job.Runs()
	})
}

// TestACopiedCheckpointIsCheckedWithItsOwnChecksums, which are in its record.
func TestACopiedCheckpointIsCheckedWithItsOwnChecksums(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		s, err := store.Open(filepath.Join(t.TempDir(), "job"), store.OpenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		images := host.Dump(job)
		testenv.Eventually(t, testenv.Soon, "the job has ended", job.Gone)
		c, err := s.Publish(t.Context(), images, store.Info{CreatedAt: time.Now(), RootPID: job.PID, Command: "cudawork"})
		if err != nil {
			t.Fatal(err)
		}
		name, putBack := flipped(t, c.Dir)
		says := testenv.Exits(t, host, 1, "restore", "-D", c.Dir)
		if !strings.Contains(says, name+": checksum mismatch") || !strings.Contains(says, "this restore has left nothing running") {
			t.Errorf("restore of a damaged checkpoint: %s", says)
		}
		testenv.Eventually(t, testenv.Soon, "the half-restored job is gone", job.Gone)
		putBack()
		testenv.Exits(t, host, 0, "restore", "-D", c.Dir)
		job.Runs()
	})
}
