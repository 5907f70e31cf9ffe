package e2e

import (
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestWhatIsLeftOfATreeRunsOnAfterAFailedDump: its only CUDA process dies in criu's
// hands, and the parent must not stay stopped for it.
func TestWhatIsLeftOfATreeRunsOnAfterAFailedDump(t *testing.T) {
	simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.StartUnder([]string{"/bin/sh", "-c", `"$@"; while :; do sleep 0.05; done`, "sh"}, 1)
		worker := job.MustStatus(0).PID
		fails := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" != post-dump ]`)
		host.UseFailpoint("dump.manifest=kill " + strconv.Itoa(worker))
		dump := host.CriuCommandScripts("dump", t.TempDir(), []string{host.HookBin, fails}, "-t", job.Root())
		_ = dump.Run()
		testenv.Eventually(t, testenv.Soon, "the parent runs", func() bool {
			for _, state := range testenv.ThreadStates(t, job.PID) {
				if state == 'T' || state == 't' {
					return false
				}
			}
			return host.LastOutcome() != "" && len(host.Watchers()) == 0
		})
		if err := unix.Kill(job.PID, 0); err != nil {
			t.Fatal(err)
		}
	})
}
