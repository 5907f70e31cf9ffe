package dump

import (
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/testenv"
)

const mebibyte = 1 << 20

// If NVML does not report what a process holds, that must not be taken to mean that it
// holds nothing: the restore would run out of memory, and the process would be lost.
func TestMemoryThatNVMLDoesNotTellIsMeasuredAtTheCheckpoint(t *testing.T) {
	testenv.Parallel(t)
	for _, view := range []string{"hide", "unknown"} {
		for _, lane := range []string{"fast", "criu"} {
			t.Run(view+", pages "+lane, func(t *testing.T) {
				testenv.Simulated(t, func(t *testing.T) {
					host := testenv.NewHost(t, 2, "--mib-per-gpu", "64")
					host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\npages: "+lane+"\n"))
					host.NVML(view)
					job := host.Start(1, "--gpus", "1", "--mib", "40")
					findings := testenv.Check(t, host, "-t", job.Root())
					if errs := findings.Of(preflight.SeverityError); len(errs) > 0 {
						t.Fatalf("refused for that alone: %+v", errs)
					}
					if !slices.ContainsFunc(findings, func(f preflight.Finding) bool { return f.Name == preflight.FindingMemoryUnknown }) {
						t.Errorf("not a word of it: %+v", findings)
					}
					images := host.Dump(job)
					manifest, err := imagedir.ReadManifest(images)
					if err != nil {
						t.Fatal(err)
					}
					for _, gpu := range manifest.Processes[0].GPUs {
						if held := manifest.Processes[0].MemoryBytes[gpu.UUID]; held < 40*mebibyte || held > 64*mebibyte {
							t.Errorf("the process is said to need %d bytes on %v", held, gpu.UUID)
						}
					}
					// Now a GPU that may have to take all of it is too full.
					host.NVML("")
					other := host.Start(1, "--gpus", "1", "--mib", "40")
					testenv.OnlyError(t, testenv.Check(t, host, "-D", images), preflight.FindingGPUMemory)
					if run := host.TryRestore(images); run.Err == nil {
						t.Fatal("restored into a GPU that has no room for it")
					}
					other.Kill()
					host.Restore(images)
					job.Runs()
				})
			})
		}
	}
}

func TestMemoryThatNVMLDoesNotTellIsMeasuredByWhoComesAfterAKilledHook(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "64")
		host.NVML("hide")
		job := host.Start(1, "--mib", "40")
		host.Faults("checkpoint kill-controller times 1") // the driver completes the checkpoint all the same
		if run := host.TryDump(job, filepath.Join(t.TempDir(), "images")); run.Err == nil {
			t.Fatal("dumped without its hook")
		}
		host.WaitOutcome("running")
		job.Runs()
		sessions := host.Sessions()
		for uuid, held := range sessions[len(sessions)-1].Members[0].MemoryBytes {
			if held >= 40*mebibyte {
				return
			}
			t.Errorf("the watcher took %d bytes on %v for enough", held, uuid)
		}
		t.Error("the watcher did not know how much memory the restore takes")
	})
}

func TestASuspendedProcessWhoseMemoryNVMLDoesNotTellWaitsForRoom(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "64")
		host.NVML("hide")
		job := host.Start(1, "--mib", "40")
		if out, err := host.Cucriu("suspend", "-p", job.Root()); err != nil {
			t.Fatalf("cucriu suspend: %v\n%s", err, out)
		}
		other := host.Start(1, "--mib", "40")
		if out, err := host.Cucriu("resume", "-p", job.Root()); err == nil {
			t.Fatalf("resumed into a GPU that has no room for it:\n%s", out)
		}
		other.Kill()
		if out, err := host.Cucriu("resume", "-p", job.Root()); err != nil {
			t.Fatalf("cucriu resume: %v\n%s", err, out)
		}
		job.Runs()
	})
}

// TestADiskAsLargeAsTheForecastIsEnough, in memory, too, where each worker's share of the GPU memory is reserved before
// the process stands still.
func TestADiskAsLargeAsTheForecastIsEnough(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(2, "--procs", "2", "--mib", "40")
		disk := filepath.Join(t.TempDir(), "disk")
		testenv.SmallDisk(t, disk, "1m")
		images := filepath.Join(disk, "images")
		var need []string
		for _, f := range testenv.Check(t, host, "-t", job.Root(), "-D", images).Of(preflight.SeverityError) {
			if f.Name == preflight.FindingDiskSpace {
				need = regexp.MustCompile(`the image takes at least (\d+) MiB`).FindStringSubmatch(f.Message)
			}
		}
		if need == nil {
			t.Fatal("a small disk is not found")
		}
		if err := unix.Mount("", disk, "", unix.MS_REMOUNT, "size="+need[1]+"m"); err != nil {
			t.Fatal(err)
		}
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		host.Restore(images)
		job.Runs()
		job.Check()
	})
}
