package restore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
