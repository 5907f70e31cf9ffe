package dump

import (
	"path/filepath"
	"testing"

	"cucriu/internal/testenv"
)

// TestAProcessWithoutCUDAIsKilledBetweenTheManifestAndCriu: the manifest lists the parked
// threads of the process, but in criu's image it is a zombie.
func TestAProcessWithoutCUDAIsKilledBetweenTheManifestAndCriu(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		file := filepath.Join(t.TempDir(), "pid")
		job := host.StartUnder([]string{"/bin/sh", "-c", `sleep 1000 & echo $! >"$1"; shift; exec "$@"`, "sh", file}, 1)
		kills := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" != pre-dump ] || kill -9 $(cat `+file+`)`)
		images := t.TempDir()
		dump := host.CriuCommandScripts("dump", images, []string{kills, host.HookBin}, "-t", job.Root()) // criu runs the last one first
		if out, err := dump.CombinedOutput(); err != nil {
			t.Fatalf("criu dump: %v\n%s", err, out)
		}
		host.WaitOutcome("dumped")
		host.Restore(images)
		job.Runs()
	})
}
