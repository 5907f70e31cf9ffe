package restore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/kit/twice"
	"cucriu/internal/testenv"
)

func embedder(t *testing.T) string {
	return testenv.Artefact(t, "make build", "build", "test", "embed")
}

// TestAnEmbedderDumpsAndRestores with a program of another module, which is not its own watcher.
func TestAnEmbedderDumpsAndRestores(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(2, "--procs", "2")
		images := filepath.Join(t.TempDir(), "images")
		if out, err := host.Command(embedder(t), "dump", job.Root(), images).CombinedOutput(); err != nil {
			t.Fatalf("dump: %v\n%s", err, out)
		}
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		if out, err := host.Command(embedder(t), "restore", images).CombinedOutput(); err != nil {
			t.Fatalf("restore: %v\n%s", err, out)
		}
		job.Runs()
	})
}

// TestAnEmbedderMapsGPUsAndGetsRefusalsAsValues: it prints them by finding and remedy.
func TestAnEmbedderMapsGPUsAndGetsRefusalsAsValues(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job := host.Start(1, "--gpus", "0")
		gpus := host.UUIDs()
		images := filepath.Join(t.TempDir(), "images")
		embed := func(status int, want string, args ...string) {
			t.Helper()
			cmd := host.Command(embedder(t), args...)
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != status || !strings.Contains(string(out), want) {
				t.Fatalf("%v: %v, want status %d and %q:\n%s", args, err, status, want, out)
			}
		}
		const refused = 3
		embed(0, "ok: cuda: sees 2 GPUs", "check", job.Root())
		embed(refused, "refused: no-process: ", "check", "4194303")
		taken := t.TempDir()
		testenv.WriteFile(t, filepath.Join(taken, "file"), "of another program")
		embed(refused, "refused: image-directory: ", "dump", job.Root(), taken)
		job.Runs()
		embed(0, "dumped: ", "dump", job.Root(), images)
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		embed(0, "saw 2 GPUs", "show", images)
		embed(0, "image sha256:", "show", images)
		embed(refused, "refused: gpu-map: ", "restore", images, "0=7")
		embed(refused, "remedy: ", "restore", images, "0=7")
		refusesACheckpointOfALongJob(t, host, images)
		embed(0, gpus[0]+" -> "+gpus[1]+": rule", "restore", images, "0=1")
		job.Runs()
		if got := job.MustStatus(0).GPUs[0].UUID; got != gpus[1] {
			t.Errorf("the job is on %s, want %s", got, gpus[1])
		}
	})
}

// refusesACheckpointOfALongJob tries to restore an image as if it were one, which would run beside what its supervisor
// resumes: with a program that uses package checkpoint, and with one that uses go-criu.
func refusesACheckpointOfALongJob(t *testing.T, host *testenv.Host, images string) {
	t.Helper()
	dir := t.TempDir()
	testenv.WriteFile(t, filepath.Join(dir, twice.RecordName), "{}")
	kept := filepath.Join(dir, twice.CheckpointsDir, "000001")
	move := func(from, to string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.Rename(from, to)); err != nil {
			t.Fatal(err)
		}
	}
	move(images, kept)
	defer move(kept, images)
	out, err := host.Command(embedder(t), "restore", kept).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "which could then run twice") {
		t.Fatalf("%v: %s", err, out)
	}
	if said, err := goCriu(t, host, "restore", kept); err == nil || !strings.Contains(said, "which could then run twice") {
		t.Fatalf("%v: %s", err, said)
	}
}

// TestAnEmbedderWithoutAWatcherIsRefused before anything is touched.
func TestAnEmbedderWithoutAWatcherIsRefused(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		program, err := os.ReadFile(embedder(t))
		if err != nil {
			t.Fatal(err)
		}
		alone := filepath.Join(t.TempDir(), "embed")
		if err := os.WriteFile(alone, program, 0o755); err != nil {
			t.Fatal(err)
		}
		images := filepath.Join(t.TempDir(), "images")
		cmd := host.Command(alone, "dump", job.Root(), images)
		cmd.Env = append(cmd.Env, "PATH=/nonexistent")
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "cucriu-hook") {
			t.Fatalf("dump: %v\n%s", err, out)
		}
		if _, err := os.Stat(images); !os.IsNotExist(err) {
			t.Errorf("image directory: %v", err)
		}
		job.Runs()
	})
}
