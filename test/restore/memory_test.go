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
		await, goOn := stalls(t, host, "restore.pre-resume")
		restored := make(chan testenv.CriuRun, 1)
		go func() { restored <- host.TryRestore(images) }()
		await()
		host.Start(1, "--mib", "40")
		goOn()
		run := <-restored
		if !strings.Contains(run.Log, "MiB free") || strings.Contains(run.Log, cudackpt.ResultOutOfMemory.Name()) {
			t.Errorf("restored with too little GPU memory: %v\n%s", run.Err, run.Log)
		}
		testenv.Eventually(t, testenv.Soon, "the half-restored job has ended", job.Gone)
	})
}

// stalls has the next commands of a host wait at a failpoint. It returns a wait until one does, and lets them go on.
func stalls(t *testing.T, host *testenv.Host, point string) (await, goOn func()) {
	t.Helper()
	dir := t.TempDir()
	waits, here, over := filepath.Join(dir, "wait"), filepath.Join(dir, "here"), filepath.Join(dir, "go")
	text := fmt.Sprintf("#!/bin/sh\n: >%s\nwhile [ ! -e %s ]; do sleep 0.01; done\n", here, over)
	if err := os.WriteFile(waits, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	host.UseFailpoint(point + "=run " + waits)
	await = func() {
		t.Helper()
		testenv.Eventually(t, testenv.Soon, "a command is at "+point, func() bool {
			_, err := os.Stat(here)
			return err == nil
		})
		host.Setenv("CUCRIU_FAILPOINT", "")
	}
	return await, func() { testenv.WriteFile(t, over, "") }
}

// restoring starts a restore that waits for memory which others may need.
func restoring(t *testing.T, host *testenv.Host, images string) (end func() error, said *testenv.Output) {
	t.Helper()
	cmd, said := host.CucriuCommand("restore", "-D", images), new(testenv.Output)
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testenv.Soon, "it says that it waits", func() bool {
		return strings.Contains(said.String(), "of which jobs that are being dumped or restored may need")
	})
	return cmd.Wait, said
}

// TestARestoreLeavesADumpTheMemoryToComeBack: what a dump has freed looks free, and the job would be lost without it.
func TestARestoreLeavesADumpTheMemoryToComeBack(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "128")
		other := host.Start(1, "--mib", "60")
		images := host.Dump(other)
		testenv.Eventually(t, testenv.Soon, "it has ended", other.Gone)
		job := host.Start(1, "--mib", "60")
		for _, args := range [][]string{{"-R"}, nil} {
			await, goOn := stalls(t, host, "dump.post-dump")
			dumped := make(chan testenv.CriuRun, 1)
			go func() { dumped <- host.TryDump(job, filepath.Join(t.TempDir(), "images"), args...) }()
			await()
			end, said := restoring(t, host, images)
			goOn()
			if run := <-dumped; run.Err != nil {
				t.Fatalf("dump %v: %v\n%s", args, run.Err, run.Log)
			}
			err := end()
			if args == nil { // the job has ended, and its memory is free
				if err != nil {
					t.Fatalf("restore: %v\n%s", err, said)
				}
				other.Runs()
			} else if err == nil || !strings.Contains(said.String(), "MiB free and the restore needs") || !other.Gone() {
				t.Fatalf("restored with too little GPU memory: %v\n%s", err, said)
			} else {
				job.Runs()
			}
		}
	})
}

// TestOfTwoRestoresTheLastIsRefused if there is room for one, and not lost when the driver has no room.
func TestOfTwoRestoresTheLastIsRefused(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "128")
		var jobs []*testenv.Job
		var images []string
		for range 2 {
			job := host.Start(1, "--mib", "60")
			jobs, images = append(jobs, job), append(images, host.Dump(job))
			testenv.Eventually(t, testenv.Soon, "it has ended", job.Gone)
		}
		await, goOn := stalls(t, host, "restore.back.free memory")
		restored := make(chan testenv.CriuRun, 1)
		go func() { restored <- host.TryRestore(images[0]) }()
		await()
		end, said := restoring(t, host, images[1])
		goOn()
		if run := <-restored; run.Err != nil {
			t.Fatalf("restore: %v\n%s", run.Err, run.Log)
		}
		jobs[0].Runs()
		if err := end(); err == nil || !strings.Contains(said.String(), "refused, nothing was touched") || !jobs[1].Gone() {
			t.Errorf("restored with too little GPU memory: %v\n%s", err, said)
		}
		jobs[0].Kill()
		testenv.Eventually(t, testenv.Soon, "it has ended", jobs[0].Gone)
		host.Restore(images[1])
		jobs[1].Runs()
	})
}
