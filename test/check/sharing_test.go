package check

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cucriu/hooks/preflight"
	"cucriu/internal/testenv"
)

// The ways in which one process gives another its device memory.
var sharings = []string{"--ipc", "--ipc-vmm"}

// shared finds what is said of two processes that share memory.
func shared(findings preflight.Findings, one, other int, outside bool) bool {
	return slices.ContainsFunc(findings.Of(preflight.SeverityError), func(f preflight.Finding) bool {
		return f.Name == preflight.FindingSharing && f.PID == one &&
			strings.Contains(f.Message, fmt.Sprintf("process %d (cudawork)", other)) && strings.Contains(f.Message, "outside") == outside
	})
}

// TestTheLibraryThatAProcessCouldNotLoadIsNamed: it is said what to do so that it serves what the processes share.
func TestTheLibraryThatAProcessCouldNotLoadIsNamed(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.StartUnder([]string{"/usr/bin/env", "LD_PRELOAD=/nowhere/guest.so"}, 2, "--ipc")
		found := testenv.Check(t, host, "-t", job.Root())
		says := func(f preflight.Finding) bool {
			return f.Name == preflight.FindingSharing && strings.Contains(f.Message, "could not open /nowhere/guest.so") && strings.Contains(f.Remedy, "chmod o+x")
		}
		if !slices.ContainsFunc(found, says) {
			t.Errorf("check finds %+v", found)
		}
	})
}

// The driver would lock and checkpoint them all, and could never restore the importer.
func TestSharedDeviceMemoryIsRefused(t *testing.T) {
	testenv.Parallel(t)
	for _, how := range sharings {
		t.Run(how, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 2)
				job := host.Start(2, how)
				exporter, importer := job.MustStatus(0).PID, job.MustStatus(1).PID
				if found := testenv.Check(t, host, "-t", job.Root()); !shared(found, exporter, importer, false) && !shared(found, importer, exporter, false) {
					t.Errorf("check finds %+v", found)
				}
				images := testenv.NewImages(t)
				if out := testenv.Exits(t, host, testenv.StatusRefused, "dump", "-t", job.Root(), "-D", images); !strings.Contains(out, "refused, nothing was touched: "+preflight.FindingSharing) {
					t.Errorf("cucriu dump:\n%s", out)
				}
				testenv.NotDumped(t, job, images)
				if run := host.TryDump(job, t.TempDir()); run.Err == nil || !strings.Contains(run.Log, preflight.FindingSharing) {
					t.Errorf("criu dump: %v\n%s", run.Err, run.Lines())
				}
				job.Runs()
				// Of the two only one is dumped, so the other is outside.
				for one, other := range map[int]int{exporter: importer, importer: exporter} {
					if found := testenv.Check(t, host, "-t", strconv.Itoa(one)); !shared(found, one, other, true) {
						t.Errorf("of %d alone check finds %+v", one, found)
					}
					if out := testenv.Exits(t, host, testenv.StatusRefused, "suspend", "-p", strconv.Itoa(one)); !strings.Contains(out, preflight.FindingSharing) {
						t.Errorf("cucriu suspend:\n%s", out)
					}
				}
				job.Runs()
			})
		})
	}
}

// Whoever begins to share memory after the inspection is found before the checkpoint.
func TestSharingThatBeginsDuringADumpIsRefused(t *testing.T) {
	testenv.Parallel(t)
	for _, how := range sharings {
		for name, c := range map[string]struct {
			point   string
			outside bool // the importer is not dumped, and so it runs even after the job was stopped
		}{"before the lock": {"dump.watch", false}, "from outside after the stop": {"dump.park", true}} {
			t.Run(how+" "+name, func(t *testing.T) {
				testenv.Isolated(t, func(t *testing.T) {
					host := testenv.NewHost(t, 1)
					job := host.Start(2, how, "--ipc-later")
					dir := filepath.Dir(job.Dirs[0])
					root := job.Root()
					if c.outside {
						host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nforce: [parent]\n"))
						root = strconv.Itoa(job.MustStatus(0).PID)
					}
					share := testenv.Script(t, fmt.Sprintf("touch %[1]s/share\nuntil [ -e %[1]s/shared ]; do sleep 0.05; done", dir))
					if errs := testenv.Check(t, host, "-t", root).Of(preflight.SeverityError); len(errs) > 0 {
						t.Fatalf("before they share: %+v", errs)
					}
					images := testenv.NewImages(t)
					out, err := testenv.Failing(t, host, c.point+"=run "+share, "dump", "-t", root, "-D", images)
					if err == nil || !strings.Contains(out, "found after the inspection: "+preflight.FindingSharing) {
						t.Fatalf("cucriu dump: %v\n%s", err, out)
					}
					if _, err := os.Stat(filepath.Join(dir, "shared")); err != nil {
						t.Error("they do not share")
					}
					testenv.NotDumped(t, job, images)
				})
			})
		}
	}
}

// They map NCCL's library, as every process of PyTorch does.
func TestProcessesThatShareNothingAreDumped(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		stub := testenv.Artefact(t, "make workload", "build", "workload", "libnccl.so.2")
		job := host.StartUnder([]string{"/usr/bin/env", "LD_PRELOAD=" + stub}, 2, "--procs", "2")
		other := host.Start(2, "--ipc") // the memory of others is no matter of theirs
		if errs := testenv.Check(t, host, "-t", job.Root()).Of(preflight.SeverityError); len(errs) > 0 {
			t.Fatalf("found %+v", errs)
		}
		host.Restore(host.Dump(job))
		job.Runs()
		other.Runs()
	})
}

// Whether processes share memory that cannot be told must be assumed.
func TestSharingThatCannotBeToldIsRefused(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		host.SilenceKernelModule()
		alone, pair := host.Start(1), host.Start(2, "--procs", "2")
		if errs := testenv.Check(t, host, "-t", alone.Root()).Of(preflight.SeverityError); len(errs) > 0 {
			t.Fatalf("one process: %+v", errs)
		}
		testenv.Refused(t, host, pair, preflight.FindingSharing, t.TempDir())
		images := testenv.NewImages(t)
		out := testenv.Exits(t, host, 3, "dump", "-t", pair.Root(), "-D", images)
		if !strings.Contains(out, "refused, nothing was touched: shared-gpu-memory") {
			t.Errorf("cucriu dump does not say why:\n%s", out)
		}
		testenv.NotDumped(t, pair, images)
		for _, name := range []string{preflight.FindingSharing, "nccl-ipc"} { // which earlier versions called it, too
			findings := testenv.Check(t, host, "-t", pair.Root(), "--force", name)
			if !slices.ContainsFunc(findings, func(f preflight.Finding) bool {
				return f.Name == preflight.FindingSharing && f.Forced
			}) {
				t.Errorf("forced as %s, and the finding is gone: %+v", name, findings)
			}
		}
		testenv.Exits(t, host, testenv.StatusUsage, "dump", "-t", pair.Root(), "-D", images,
			"--force", preflight.FindingTraced)
		testenv.Exits(t, host, 0, "dump", "-t", pair.Root(), "-D", images, "--force", preflight.FindingSharing)
		testenv.Eventually(t, testenv.Soon, "the job is reaped", pair.Gone)
		host.Restore(images)
		pair.Runs()
	})
}

// Nobody has compared this driver's kernel module with one that was measured: what it says is no reason to touch a job.
func TestAnUnknownDriverIsNotBelieved(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		host.DriverVersion("600.10.01")
		alone, pair := host.Start(1), host.Start(2, "--procs", "2")
		if errs := testenv.Check(t, host, "-t", alone.Root()).Of(preflight.SeverityError); len(errs) > 0 {
			t.Errorf("one process: %+v", errs)
		}
		found := testenv.Refused(t, host, pair, preflight.FindingSharing, t.TempDir())
		if !strings.Contains(found.Message, "driver 600.10.01 has been neither measured nor compared") {
			t.Errorf("the driver is not said to be unknown: %v", found)
		}
		if errs := testenv.Check(t, host, "-t", pair.Root(), "--force", preflight.FindingSharing).Of(preflight.SeverityError); len(errs) > 0 {
			t.Errorf("forced: %+v", errs)
		}
	})
}
