package dump

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// childrenOf returns the processes of a job but for its root, and fails the test if there is
// none.
func childrenOf(t *testing.T, job *testenv.Job) []int {
	t.Helper()
	pids, err := proc.Tree(job.PID)
	if err != nil || len(pids) < 2 {
		t.Fatalf("the tree of %d: %v, %v", job.PID, pids, err)
	}
	return pids[1:]
}

// holds describes what a process holds of the driver, a line for each descriptor and mapping.
// It is empty for a process that has ended.
func holds(pid int) string {
	var held strings.Builder
	dir := fmt.Sprintf("/proc/%d", pid)
	entries, _ := os.ReadDir(filepath.Join(dir, "fd"))
	for _, entry := range entries {
		if path, _ := os.Readlink(filepath.Join(dir, "fd", entry.Name())); strings.Contains(path, "/dev/nvidia") {
			fmt.Fprintln(&held, "descriptor", entry.Name(), path)
		}
	}
	maps, _ := os.ReadFile(filepath.Join(dir, "maps"))
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "/dev/nvidia") {
			held.WriteString(line)
		}
	}
	return held.String()
}

func wantReleased(t *testing.T, job *testenv.Job) {
	t.Helper()
	for _, pid := range childrenOf(t, job) {
		if held := holds(pid); held != "" {
			t.Errorf("child %d holds devices:\n%s", pid, held)
		}
	}
}

func TestForkedChildrenAreDumpedWithoutTheDevices(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--loaders", "10", "--fork-child")
		for _, pid := range childrenOf(t, job) {
			held := holds(pid)
			child, err := proc.Open(pid)
			if err != nil {
				continue // a child that comes and goes
			}
			if held == "" && !child.Exiting() {
				t.Errorf("child %d has inherited nothing", pid)
			}
			child.Close()
		}
		isOfChildren := func(f preflight.Finding) bool {
			return f.Name == preflight.FindingForkedChild && f.Severity == preflight.SeverityOK
		}
		if findings := testenv.Check(t, host, "-t", job.Root()); !slices.ContainsFunc(findings, isOfChildren) {
			t.Errorf("check says nothing of the children: %+v", findings)
		}
		images := host.Dump(job)
		host.Restore(images)
		job.Runs()
		wantReleased(t, job)
		// Again, with workers that have nothing left.
		host.Restore(host.Dump(job))
		job.Runs()
		job.Kill()
	})
}

func TestForkedChildrenRunOnAfterADumpThatLeavesThem(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--loaders", "10")
		images := host.Dump(job, "-R")
		host.WaitOutcome("running")
		job.Runs()
		wantReleased(t, job)
		job.Kill()
		host.Restore(images)
		job.Runs()
	})
}

func TestChildrenMadeByVforkDoNotRefuseADump(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--loaders", "5", "--vfork")
		for range 3 {
			host.Restore(host.Dump(job))
			job.Runs()
		}
	})
}

// A worker that was stopped before stays stopped, and is released as well.
func TestAForkedChildThatIsStoppedStaysSo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--fork-child")
		child := childrenOf(t, job)[0]
		if err := unix.Kill(child, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		isStopped := func() bool { stopped, err := proc.Stopped(child); return err == nil && stopped }
		testenv.Eventually(t, testenv.Soon, "the child stops", isStopped)
		host.Restore(host.Dump(job))
		job.Runs()
		wantReleased(t, job)
		child = childrenOf(t, job)[0]
		testenv.Eventually(t, testenv.Soon, "the restored child is stopped", isStopped)
	})
}

// looker starts a CUDA process that holds a GPU device which is not CUDA's.
func looker(t *testing.T, host *testenv.Host, libraries ...string) *testenv.Job {
	t.Helper()
	for i, library := range libraries {
		libraries[i] = testenv.Artefact(t, "make workload", "build", "workload", library)
	}
	return host.StartUnder([]string{"/usr/bin/env", "LD_PRELOAD=" + strings.Join(libraries, " ")}, 1, "--look")
}

// Open MPI looks for GPUs with OpenCL (hwloc), and PyTorch Lightning starts Open MPI.
func TestDevicesThatWereOnlyLookedAtAreTaken(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := looker(t, host, "libnvidia-opencl.so.1", "hwloc_opencl.so")
		isOfLook := func(f preflight.Finding) bool {
			return f.Name == preflight.FindingNVIDIADevice && f.Severity == preflight.SeverityWarning
		}
		if findings := testenv.Check(t, host, "-t", job.Root()); !slices.ContainsFunc(findings, isOfLook) {
			t.Errorf("check says nothing of it: %+v", findings)
		}
		before := strings.Count(holds(job.PID), "/dev/nvidia")
		host.Restore(host.Dump(job))
		job.Runs()
		if after := strings.Count(holds(job.PID), "/dev/nvidia"); after >= before {
			t.Errorf("it held %d devices, and holds %d", before, after)
		}
	})
}

func TestADeviceThatIsNotCUDAsFailsTheDumpWithItsName(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := looker(t, host)
		run := host.TryDump(job, t.TempDir())
		if run.Err == nil || !strings.Contains(run.Log, "devices: nvidia-device: process "+job.Root()) || !strings.Contains(run.Log, "dev/nvidiactl") {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		host.WaitOutcome("running")
		job.Runs()
		if !strings.Contains(holds(job.PID), "dev/nvidiactl") {
			t.Error("it has lost its device")
		}
	})
}

// A process without CUDA, such as Open MPI's daemon, that has looked for GPUs.
func TestADaemonThatHasLookedForGPUsIsNoHindrance(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		var stubs []string
		for _, library := range []string{"libnvidia-opencl.so.1", "hwloc_opencl.so"} {
			stubs = append(stubs, testenv.Artefact(t, "make workload", "build", "workload", library))
		}
		const script = `(exec 9<>"$1"; export LD_PRELOAD="$2"; exec sleep 1000) & shift 2; "$@" & wait`
		device := filepath.Join("/", host.Dir, "dev/nvidiactl")
		job := host.StartUnder([]string{"/bin/sh", "-c", script, "sh", device, strings.Join(stubs, " ")}, 1)
		daemon := childrenOf(t, job)[0]
		testenv.Eventually(t, testenv.Soon, "the daemon has loaded them", func() bool {
			maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", daemon))
			return strings.Contains(string(maps), filepath.Base(stubs[1]))
		})
		host.Restore(host.Dump(job))
		job.Runs()
		if held := holds(childrenOf(t, job)[0]); strings.Contains(held, "descriptor 9") {
			t.Errorf("the daemon still holds\n%s", held)
		}
	})
}
