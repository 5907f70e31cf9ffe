package guest

import (
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"cucriu/cudackpt"
	"cucriu/internal/core/agent"
	"cucriu/internal/testenv"
)

// phases returns the names of what the last session has done.
func phases(host *testenv.Host) []string {
	sessions := host.Sessions()
	var names []string
	for _, p := range sessions[len(sessions)-1].Phases {
		names = append(names, p.Name)
	}
	return names
}

// wasKept checks whether the last dump's memory came back from the GPUs, and not from the host.
func wasKept(t *testing.T, host *testenv.Host) {
	t.Helper()
	names := phases(host)
	if !slices.Contains(names, "move in") || slices.Contains(names, "fill moved") {
		t.Errorf("the memory did not come back from the GPUs; the phases are %q", names)
	}
}

// goesOnFromTheGPUs dumps a job that goes on.
func goesOnFromTheGPUs(t *testing.T, host *testenv.Host, job *testenv.Job) {
	t.Helper()
	moved(t, host, host.TryDump(job, testenv.NewImages(t), "-R"))
	host.WaitOutcome("running")
	wasKept(t, host)
	job.Runs()
	job.Check()
}

// TestTheGPUsKeepTheMemory of a job that goes on.
func TestTheGPUsKeepTheMemory(t *testing.T) {
	testenv.Parallel(t)
	for name, c := range map[string]struct {
		room string // MiB of the GPU
		args []string
	}{
		"cuMemAlloc":          {"400", nil},
		"handles":             {"400", []string{"--memory", "vmm"}},
		"many parts":          {"800", []string{"--ballast", "600"}},
		"several allocations": {"400", []string{"--ballast", "48", "--ballast-pieces", "3"}},
		"both GPUs":           {"400", []string{"--gpus", "0,1", "--peer", "both"}},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 2, "--mib-per-gpu", c.room)
				job := startWithGuest(t, host, c.args...)
				for range 3 {
					goesOnFromTheGPUs(t, host, job)
				}
				images := testenv.NewImages(t)
				moved(t, host, host.TryDump(job, images))
				host.Restore(images)
				job.Runs()
				job.Check()
			})
		})
	}
}

// TestAJobHasAnOlderLibrary: it was started by an older cucriu. Its memory is moved; before version 3 it comes back from the host.
func TestAJobHasAnOlderLibrary(t *testing.T) {
	testenv.Parallel(t)
	for version, phase := range map[string]string{"v1": "fill", "v2": "fill moved", "v3": "move in", "v4": "move in"} { // v1 does not say where the memory is
		t.Run(version, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1, "--mib-per-gpu", "400")
				host.Setenv("CUCRIU_CONFIG", host.Config(testenv.Patient))
				library := testenv.Artefact(t, "make guest", "build", "test", "small-"+version+"-"+runtime.GOARCH+".so")
				job := host.StartUnder([]string{"/usr/bin/env", "LD_PRELOAD=" + library}, 1, "--mib", "64")
				job.Runs()
				moved(t, host, host.TryDump(job, testenv.NewImages(t), "-R"))
				host.WaitOutcome("running")
				if names := phases(host); !slices.Contains(names, phase) {
					t.Errorf("no phase is called %q, of %q", phase, names)
				}
				images := testenv.NewImages(t)
				moved(t, host, host.TryDump(job, images))
				host.Restore(images)
				job.Runs()
				job.Check()
			})
		})
	}
}

// TestWhatTheGPUsKeepIsLost with somebody who is killed: then it comes from the files.
func TestWhatTheGPUsKeepIsLost(t *testing.T) {
	testenv.Parallel(t)
	for point, recovers := range map[string]bool{
		"dump.kept=kill":                      false,
		"dump.kept=error":                     false,
		"dump.checkpoint=kill":                false,
		"dump.dumping=kill-watcher+kill":      true,
		"dump.back.release=kill":              true,
		"dump.back.kept=kill":                 true,
		"dump.back.kept=error":                false,
		"dump.kept=kill-watcher":              true,
		"dump.back.move=kill":                 true,
		"dump.back.moving=kill":               true,
		"dump.dumping=kill-watcher+kill-criu": true,
	} {
		t.Run(point, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1, "--mib-per-gpu", "100") // not enough for the memory twice
				job := startWithGuest(t, host)
				survives(t, host, job, point, recovers)
				goesOnFromTheGPUs(t, host, job)
			})
		})
	}
}

// survives dumps a job that goes on, while somebody is killed; with recovers, nobody is left then that brings it back.
func survives(t *testing.T, host *testenv.Host, job *testenv.Job, point string, recovers bool) {
	t.Helper()
	marks := t.TempDir()
	host.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
	host.UseFailpoint(point)
	_ = host.TryDump(job, testenv.NewImages(t), "-R")
	if recovers {
		testenv.Eventually(t, testenv.Soon, "the watcher is killed", func() bool { return len(host.Watchers()) == 0 })
		host.UseFailpoint("")
		if out, err := host.Cucriu("recover"); err != nil {
			t.Fatalf("cucriu recover: %v\n%s", err, out)
		}
	}
	host.WaitOutcome("running")
	if reached, _, _ := strings.Cut(point, "="); !testenv.Exists(filepath.Join(marks, reached)) {
		t.Error("the failpoint was not reached")
	}
	job.Runs()
	job.Check()
	host.UseFailpoint("")
}

// TestAGPUHasNoRoomForAPartASecondTime: it goes by way of the host.
func TestAGPUHasNoRoomForAPartASecondTime(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "310") // parts are as large as outside of tests: 256 MiB
		host.Setenv("CUCRIU_CONFIG", host.Config(testenv.Patient))
		library := filepath.Join(filepath.Dir(testenv.Guest(t)), "guest-"+runtime.GOARCH+".so")
		job := host.StartUnder([]string{"/usr/bin/env", "LD_PRELOAD=" + library}, 1, "--mib", "288")
		job.Runs()
		for range 2 {
			goesOnFromTheGPUs(t, host, job)
		}
	})
}

// TestNothingIsKeptOfAJobThatEnds, which would hold memory that others can have.
func TestNothingIsKeptOfAJobThatEnds(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "100")
		job := startWithGuest(t, host)
		d := dumpUntil(t, host, job, "dump.moved")
		other := host.Start(1, "--mib", "64")
		other.Runs()
		other.Kill()
		host.Restore(d.goOn(t))
		job.Runs()
		job.Check()
	})
}

// TestAnotherJobCannotTakeWhatIsKept: the GPU has no room for it until the job is back.
func TestAnotherJobCannotTakeWhatIsKept(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "100")
		job := startWithGuest(t, host)
		d := dumpUntil(t, host, job, "dump.dumping", "-R")
		if status, err := agentOf(t, job).Status(); err != nil || status.State != agent.Emptied || status.Descriptor >= 0 {
			t.Errorf("the library is to have nothing, and no descriptor: %+v %v", status, err)
		}
		uuid, err := cudackpt.ParseUUID(host.UUIDs()[0])
		if err != nil {
			t.Fatal(err)
		}
		if memory, err := host.Driver().Memory(t.Context(), uuid); err != nil || memory.Free > 40<<20 {
			t.Errorf("another job can have the memory: %+v %v", memory, err)
		}
		d.goOn(t)
		host.WaitOutcome("running")
		wasKept(t, host)
		job.Runs()
		job.Check()
	})
}
