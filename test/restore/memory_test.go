package restore

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/cudackpt"
	"cucriu/internal/testenv"
)

// TestADriverIsToldNothingForWhichThereIsNoRoom: another job takes the memory after the checks of pre-restore. A driver
// that has no room for a process never restores it again.
func TestADriverIsToldNothingForWhichThereIsNoRoom(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "64")
		job := host.Start(1, "--mib", "40")
		images := host.Dump(job)
		dir := t.TempDir()
		waits, here, goOn := filepath.Join(dir, "wait"), filepath.Join(dir, "here"), filepath.Join(dir, "go")
		text := fmt.Sprintf("#!/bin/sh\n: >%s\nwhile [ ! -e %s ]; do sleep 0.01; done\n", here, goOn)
		if err := os.WriteFile(waits, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		host.UseFailpoint("restore.pre-resume=run " + waits)
		restored := make(chan testenv.CriuRun, 1)
		go func() { restored <- host.TryRestore(images) }()
		testenv.Eventually(t, testenv.Soon, "criu is at pre-resume", func() bool {
			_, err := os.Stat(here)
			return err == nil
		})
		host.Start(1, "--mib", "40")
		testenv.WriteFile(t, goOn, "")
		run := <-restored
		if !strings.Contains(run.Log, "MiB free") || strings.Contains(run.Log, cudackpt.ResultOutOfMemory.Name()) {
			t.Errorf("restored with too little GPU memory: %v\n%s", run.Err, run.Log)
		}
		testenv.Eventually(t, testenv.Soon, "the half-restored job has ended", job.Gone)
	})
}
