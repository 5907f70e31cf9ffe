package restore

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/pages"
	"cucriu/internal/testenv"
)

// TestAJobComesBackFromStoredCheckpointsThatShareTheirState restores a checkpoint whose GPU
// state was partly written by an earlier dump, after that one's checkpoint is gone.
func TestAJobComesBackFromStoredCheckpointsThatShareTheirState(t *testing.T) {
	testenv.Parallel(t)
	for _, codec := range []pages.Codec{pages.Zero, pages.S2} {
		t.Run(codec.String(), func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(2, "--procs", "2", "--mib", "2", "--ballast", "8", "--flat", "4", "--spin", "stream-sync")
				s, err := store.Open(filepath.Join(t.TempDir(), "job"), store.OpenOptions{Codec: codec})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				var last store.Checkpoint
				for range 3 {
					info := store.Info{CreatedAt: time.Now(), RootPID: job.PID, Command: "cudawork"}
					last, err = s.Publish(t.Context(), testenv.DumpAndLeave(t, host, job, "-R"), info)
					if err != nil {
						t.Fatal(err)
					}
					if len(last.Warnings) > 0 {
						t.Error(last.Warnings)
					}
					job.Runs()
				}
				all, err := s.Checkpoints()
				if err != nil || len(all) != 3 {
					t.Fatalf("%d checkpoints, %v", len(all), err)
				}
				for range 2 { // alone, too
					if err := s.Verify(t.Context(), last, 2, nil); err != nil {
						t.Fatal(err)
					}
					if _, err := s.Prune(t.Context(), store.Policy{Keep: 1}); err != nil {
						t.Fatal(err)
					}
				}
				if all, err := s.Checkpoints(); err != nil || len(all) != 1 {
					t.Fatalf("%d checkpoints, %v", len(all), err)
				}
				t.Logf("%d of %d bytes are new", last.New, last.Bytes)
				linked := linkedShard(t, last.Dir)
				job.Kill()
				testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)

				whole, err := os.ReadFile(linked)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Truncate(linked, int64(len(whole)-1)); err != nil {
					t.Fatal(err)
				}
				run := host.TryRestore(last.Dir)
				if run.Err == nil || !strings.Contains(run.Log, filepath.Base(linked)) {
					t.Fatalf("a damaged shard: %v\n%s", run.Err, run.Lines())
				}
				if err := os.WriteFile(linked, whole, 0o600); err != nil {
					t.Fatal(err)
				}
				testenv.Exits(t, host, 0, "check", "-D", last.Dir)
				for range 2 { // by the command, and by criu and the hook
					testenv.Exits(t, host, 0, "restore", "-D", last.Dir)
					job.Runs()
					job.Kill()
					testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
					host.Restore(last.Dir)
					job.Runs()
					job.Kill()
					testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
				}
				if err := s.Verify(t.Context(), last, 2, nil); err != nil {
					t.Errorf("after it was restored: %v", err)
				}
			})
		})
	}
}

// linkedShard returns a shard of an image that an earlier dump has written.
func linkedShard(t *testing.T, dir string) string {
	t.Helper()
	manifest, err := imagedir.ReadManifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range manifest.Processes {
		i := slices.IndexFunc(p.Pages.Origins, func(o pages.Origin) bool { return o.ID != p.Pages.ID })
		if i >= 0 {
			return filepath.Join(dir, p.Pages.Names(p.PID)[1+i])
		}
	}
	t.Fatalf("nothing is shared with an earlier dump: %+v", manifest.Processes)
	return ""
}
