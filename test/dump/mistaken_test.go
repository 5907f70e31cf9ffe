package dump

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// A folder may have a name that looks like that of a GPU device.
func TestFilesInAFolderCalledDevNVIDIAAreNotTaken(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		dir := filepath.Join(t.TempDir(), "dev", "nvidia-tests")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		program := filepath.Join(dir, "train")
		data, err := os.ReadFile(testenv.Artefact(t, "make workload", "build", "workload", "cudawork"))
		if err == nil {
			err = os.WriteFile(program, data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		job := host.StartProgram(program, 1, "--loaders", "5")
		host.Restore(host.Dump(job))
		job.Runs()
	})
}

// In some containers NVML lists nobody. Then it is not known that OpenCL computes nothing.
func TestDevicesAreNotTakenIfNVMLTellsNothing(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := looker(t, host, "libnvidia-opencl.so.1", "hwloc_opencl.so")
		host.NVML("hide")
		run := host.TryDump(job, t.TempDir())
		if run.Err == nil {
			t.Fatal("it was dumped")
		}
		job.Runs()
		if !strings.Contains(holds(job.PID), "dev/nvidiactl") {
			t.Error("it has lost its device")
		}
	})
}

// A process without a context at the inspection gets one before it is locked, and may share it.
func TestAContextThatComesAfterTheInspectionIsRefused(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		host.SilenceKernelModule() // else it tells who shares memory
		late := t.TempDir()
		job := host.StartUnder([]string{
			"/bin/sh", "-c",
			strings.ReplaceAll(`"$@" & "$1" --dir LATE --context-later & wait`, "LATE", late), "sh",
		}, 1)
		driver := host.Driver()
		testenv.Eventually(t, testenv.Soon, "both use CUDA", func() bool {
			cuda := cudaOf(t, job)
			return len(cuda) == 2 && !slices.ContainsFunc(cuda, func(pid int) bool { // it may still initialize it
				_, err := driver.Process(pid).RestoreThreadID(t.Context())
				return err != nil
			})
		})
		host.UseFailpoint("dump.lock=run " + testenv.Script(t, "cd "+late+" && touch context && until [ -s status ]; do sleep 0.05; done"))
		images := testenv.NewImages(t)
		out, err := host.Cucriu("dump", "-t", job.Root(), "-D", images)
		if err == nil || !strings.Contains(out, preflight.FindingSharing) {
			t.Fatalf("cucriu dump: %v\n%s", err, out)
		}
		job.Runs()
	})
}

// cudaOf returns the processes of a job that hold a GPU device.
func cudaOf(t *testing.T, job *testenv.Job) []int {
	t.Helper()
	pids, err := proc.Tree(job.PID)
	if err != nil {
		t.Fatal(err)
	}
	var cuda []int
	for _, pid := range pids {
		if strings.Contains(holds(pid), "dev/nvidia") {
			cuda = append(cuda, pid)
		}
	}
	return cuda
}

func TestAForkedChildWithALowLimitOfFilesIsDumped(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--fork-child")
		child := childrenOf(t, job)[0]
		few := unix.Rlimit{Cur: 32, Max: 1024}
		if err := unix.Prlimit(child, unix.RLIMIT_NOFILE, &few, nil); err != nil {
			t.Fatal(err)
		}
		host.Restore(host.Dump(job))
		job.Runs()
		wantReleased(t, job)
	})
}

func TestFileLocksThatNameNoProcessOfTheTreeAreFound(t *testing.T) {
	testenv.Parallel(t)
	const ofd = `python3 -c 'import fcntl, struct; fcntl.fcntl(4, 37, struct.pack("hhqqi4x", 1, 0, 0, 0, 0))'; `
	for name, script := range map[string]string{
		"flock by a program that ended": `exec 4>locked; flock -x 4; `,
		"of the open file":              `exec 4>locked; ` + ofd,
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				dir := t.TempDir()
				pid := host.Spawn(dir, "/bin/bash", "-c", "cd "+dir+"; "+script+"touch ready; while :; do sleep 0.1; done")
				testenv.Eventually(t, testenv.Soon, "it is ready", func() bool { return testenv.Exists(filepath.Join(dir, "ready")) })
				images := testenv.NewImages(t)
				testenv.Exits(t, host, 0, "dump", "-t", strconv.Itoa(pid), "-D", images)
				testenv.Eventually(t, testenv.Soon, "it is gone", testenv.JobOf(t, pid).Gone)
				testenv.Exits(t, host, 0, "restore", "-D", images)
			})
		})
	}
}
