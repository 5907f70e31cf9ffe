package check

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/inject"
	"cucriu/internal/testenv"
)

// besideHolder starts a job beside a process that has opened a GPU device itself.
func besideHolder(host *testenv.Host, args ...string) *testenv.Job {
	const script = `exec 9<>"$1"; shift; "$@" 9>&- & wait`
	return host.StartUnder([]string{"/bin/sh", "-c", script, "sh", filepath.Join("/", host.Dir, "dev/nvidiactl")}, 1, args...)
}

func TestWhatCannotBeDumpedIsFoundBeforehandAndTheJobRunsOn(t *testing.T) {
	testenv.Parallel(t)
	for _, test := range []struct {
		finding string
		start   func(t *testing.T, host *testenv.Host) *testenv.Job
	}{
		{preflight.FindingNVIDIADevice, func(_ *testing.T, host *testenv.Host) *testenv.Job { return besideHolder(host) }},
		{preflight.FindingNVIDIADevice, func(_ *testing.T, host *testenv.Host) *testenv.Job { return host.Start(1, "--share-files") }},
		{preflight.FindingForkedChild, func(t *testing.T, host *testenv.Host) *testenv.Job {
			host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nforked_children: refuse\n"))
			return host.Start(1, "--loaders", "5")
		}},
		{preflight.FindingIOURing, func(_ *testing.T, host *testenv.Host) *testenv.Job { return host.Start(1, "--io-uring") }},
		{preflight.FindingTraced, func(t *testing.T, host *testenv.Host) *testenv.Job {
			job := host.Start(1)
			tracer := inject.NewTracer()
			t.Cleanup(func() { _ = tracer.Release(context.Background()) })
			if err := tracer.Run(job.PID); err != nil {
				t.Fatal(err)
			}
			return job
		}},
		{preflight.FindingDifferentGPUs, func(t *testing.T, host *testenv.Host) *testenv.Job {
			host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nforce: [container, unsupported-file]\n")) // it has mounts of its own, too
			other := t.TempDir()
			job := host.StartUnder([]string{
				"/usr/bin/unshare", "-m", "/bin/sh", "-c", // criu dumps a mount namespace below another one
				`unshare -m /bin/sh -c 'mount --bind /dev/null "$0" && exec "$@"' "$1" "$3" --dir "$2" & shift 2; "$@" & wait`,
				"sh", filepath.Join(host.Dir, "dev/nvidia1"), other,
			}, 1)
			testenv.Eventually(t, testenv.Soon, "the process that sees fewer GPUs ticks", func() bool {
				data, err := os.ReadFile(filepath.Join(other, "status"))
				return err == nil && !strings.Contains(string(data), `"tick":0,`)
			})
			return job
		}},
		{preflight.FindingCUDAPlugin, func(t *testing.T, host *testenv.Host) *testenv.Job {
			job := host.Start(1)
			plugins, tools := t.TempDir(), t.TempDir()
			if err := os.WriteFile(filepath.Join(plugins, "cuda_plugin.so"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(tools, "cuda-checkpoint"), []byte("#!/bin/sh\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			host.Setenv("CRIU_LIBS_DIR", plugins)
			host.Setenv("PATH", tools+":"+os.Getenv("PATH"))
			return job
		}},
	} {
		t.Run(test.finding, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 2)
				testenv.Refused(t, host, test.start(t, host), test.finding, t.TempDir())
			})
		})
	}
}

// memoryGroup moves a job into a memory control group of its own, and returns a function
// that writes to its files.
func memoryGroup(t *testing.T, job *testenv.Job) (dir, limitFile string, write func(name, text string)) {
	t.Helper()
	dir, limitFile = testenv.MemoryGroup(t)
	if dir == "" {
		t.Skip("this kernel mounts no memory controller in which a group could be made")
	}
	t.Cleanup(job.Kill)
	write = func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	write("cgroup.procs", job.Root())
	return dir, limitFile, write
}

func TestAControlGroupThatIsTooSmallIsRefused(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--mib", "64")
		group, limitFile, write := memoryGroup(t, job)
		write(limitFile, "48M")
		found := testenv.Refused(t, host, job, preflight.FindingMemoryCgroup, t.TempDir(), "--manage-cgroups=ignore")
		if !strings.Contains(found.Message, group) || !strings.Contains(found.Remedy, limitFile) {
			t.Errorf("neither the group nor its limit is named: %v", found)
		}
		if out, err := host.Cucriu("suspend", "-p", job.Root()); err == nil || !strings.Contains(out,
			preflight.FindingMemoryCgroup) {
			t.Errorf("cucriu suspend: %v\n%s", err, out)
		}
		write(limitFile, "512M")
		host.Restore(host.Dump(job, "--manage-cgroups=ignore"), "--manage-cgroups=ignore")
		job.Runs()
	})
}

// An image on tmpfs counts as memory of the writer's group. The staging memory is dropped
// only after all of it was copied. The group once had no room for both, and the OOM killer
// came in the middle of the copy.
func TestAnImageInMemoryAndTheStagingMemoryAreAddedUp(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--mib", "96")
		group, limitFile, write := memoryGroup(t, job)
		write(limitFile, "190M")
		// Everything that is started from here on is in the group.
		inGroup := func(args ...string) *exec.Cmd {
			return host.Command("/bin/sh", append([]string{"-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(group, "cgroup.procs")}, args...)...)
		}
		disk, memory := t.TempDir(), t.TempDir()
		testenv.SmallDisk(t, memory, "512m")
		program := testenv.Artefact(t, "make build", "bin", "cucriu")
		if out, err := inGroup(program, "check", "-t", job.Root(), "-D", memory).CombinedOutput(); err == nil || !strings.Contains(string(out), preflight.FindingMemoryCgroup) {
			t.Fatalf("an image in memory is not counted: %v\n%s", err, out)
		}
		if out, err := inGroup(program, "check", "-t", job.Root(), "-D", disk).CombinedOutput(); keepsOnDisk(t, disk) && err != nil {
			t.Fatalf("an image on a disk is counted: %v\n%s", err, out)
		}
		images := filepath.Join(memory, "images")
		criu := host.CriuCommand("dump", images, "-t", job.Root(), "--manage-cgroups=ignore")
		dump := func() error { return inGroup(criu.Args...).Run() }
		if err := dump(); err == nil {
			t.Fatal("dumped without the memory for it")
		}
		job.Runs()
		write(limitFile, "512M")
		if err := dump(); err != nil {
			t.Fatalf("criu dump with enough memory: %v", err)
		}
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		host.Restore(images, "--manage-cgroups=ignore")
		job.Runs()
	})
}

// TestOwnMemoryIsCounted where the dump is made in the control group of the job, as by a job script:
// the OOM killer once came in the middle of the checkpoint.
func TestOwnMemoryIsCounted(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--mib", "96")
		group, limitFile, write := memoryGroup(t, job)
		write(limitFile, "114M") // room for the GPU state, and for little else
		program := testenv.Artefact(t, "make build", "bin", "cucriu")
		images := testenv.NewImages(t)
		out, err := host.Command("/bin/sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(group, "cgroup.procs"), program, "dump", "-t", job.Root(), "-D", images).CombinedOutput()
		if err == nil || !strings.Contains(string(out), preflight.FindingMemoryCgroup) || !strings.Contains(string(out), "that criu and cucriu need there") {
			t.Errorf("%v\n%s", err, out)
		}
		testenv.NotDumped(t, job, images)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images) // from outside of the group
	})
}

// TestTheOutOfMemoryKillerIsNamed by a dump that it has failed, and that ends.
func TestTheOutOfMemoryKillerIsNamed(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--mib", "96")
		group, limitFile, write := memoryGroup(t, job)
		write(limitFile, "64M")
		out := testenv.Exits(t, host, testenv.StatusEnded, "dump", "-t", job.Root(), "-D", testenv.NewImages(t), "--force", preflight.FindingMemoryCgroup)
		if !strings.Contains(out, "the out-of-memory killer has killed processes in the control group "+group) {
			t.Errorf("it does not say who ended the job:\n%s", out)
		}
	})
}

// keepsOnDisk reports whether a folder is on a file system that is not in memory.
func keepsOnDisk(t *testing.T, dir string) bool {
	t.Helper()
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Type != unix.TMPFS_MAGIC
}

func TestADiskThatIsTooSmallIsRefused(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--mib", "64")
		images := t.TempDir()
		testenv.SmallDisk(t, images, "32m")
		testenv.Refused(t, host, job, preflight.FindingDiskSpace, images)
	})
}

func TestALibraryThatWasNeverUsedNeedsNoDriver(t *testing.T) {
	testenv.Parallel(t)
	for _, driver := range []string{"old", "missing"} {
		t.Run(driver, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1, "--driver", "550")
				pid := host.Spawn(t.TempDir(), "/usr/bin/env", "LD_PRELOAD=libcuda.so.1", "/bin/sleep", "1000")
				testenv.Eventually(t, testenv.Soon, "libcuda is mapped", func() bool {
					maps, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "maps"))
					return err == nil && strings.Contains(string(maps), "/550/libcuda.so.1") && strings.Contains(string(maps), "/sleep")
				})
				job, finding := host.Start(1), preflight.FindingDriverOld
				if driver == "missing" {
					host.Setenv("CUCRIU_LIBCUDA", "/nonexistent/libcuda.so.1")
					finding = preflight.FindingDriverMissing
				}
				host.Dump(testenv.JobOf(t, pid))
				run := host.TryDump(job, t.TempDir()) // of a process that has used it
				if run.Err == nil || !strings.Contains(run.Log, "refused, nothing was touched: "+finding) {
					t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
				}
				job.Runs()
			})
		})
	}
}

// TestOneProcessOnSeveralGPUsIsRefusedIfTheModuleIsSilent: nothing else shows that it has no peer access.
func TestOneProcessOnSeveralGPUsIsRefusedIfTheModuleIsSilent(t *testing.T) {
	testenv.Parallel(t)
	for _, test := range []struct {
		name    string
		config  string
		gpus    string
		refused bool
	}{
		{"two GPUs", "version: 1\n", "0,1", true},
		{"one GPU of two", "version: 1\n", "0", false},
		{"forced by root's configuration", "version: 1\nforce: [peer-memory]\n", "0,1", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 2)
				host.SilenceKernelModule() // else it tells who has peer access
				host.Setenv("CUCRIU_CONFIG", host.Config(test.config))
				job := host.Start(1, "--gpus", test.gpus)
				if !test.refused {
					host.Restore(host.Dump(job))
					job.Runs()
					return
				}
				found := testenv.Refused(t, host, job, preflight.FindingPeerMemory, t.TempDir())
				if !strings.Contains(found.Remedy, "CUDA_VISIBLE_DEVICES") {
					t.Errorf("no remedy is named: %v", found)
				}
				if out, err := host.Cucriu("suspend", "-p", strconv.Itoa(job.MustStatus(0).PID)); err == nil || !strings.Contains(out, "peer-memory") {
					t.Errorf("cucriu suspend: %v\n%s", err, out)
				}
				job.Runs()
			})
		})
	}
}

func TestAnImageIsCheckedAgainstAHost(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		source := testenv.NewHost(t, 2, "--mib-per-gpu", "64")
		job := source.Start(1, "--gpus", "0,1", "--mib", "40")
		images := source.Dump(job)
		if errs := testenv.Check(t, source, "-D", images).Of(preflight.SeverityError); len(errs) > 0 {
			t.Fatalf("found %+v on the host where it was made", errs)
		}
		source.Start(1, "--gpus", "1", "--mib", "40")
		testenv.OnlyError(t, testenv.Check(t, source, "-D", images), preflight.FindingGPUMemory)
		testenv.OnlyError(t, testenv.Check(t, testenv.NewHost(t, 1), "-D", images), preflight.FindingGPUMap)
		testenv.OnlyError(t, testenv.Check(t, testenv.NewHost(t, 2, "--driver", "570"), "-D", images), preflight.FindingDriverVersion)
		testenv.OnlyError(t, testenv.Check(t, testenv.NewHost(t, 2, "--driver", "550"), "-D", images), preflight.FindingDriverOld)
	})
}

func TestCheckFindsNothingAgainstAStoppedJobOrATreeWithoutCUDA(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		pid := host.Spawn(t.TempDir(), "/bin/sleep", "1000")
		if errs := testenv.Check(t, host, "-t", strconv.Itoa(pid)).Of(preflight.SeverityError); len(errs) > 0 {
			t.Fatalf("found %+v", errs)
		}
		job := host.Start(1)
		job.Signal(unix.SIGSTOP)
		testenv.Eventually(t, testenv.Soon, "the job stops", job.Stopped)
		findings := testenv.Check(t, host, "-t", job.Root())
		if errs := findings.Of(preflight.SeverityError); len(errs) > 0 {
			t.Fatalf("found %+v", errs)
		}
		if !slices.ContainsFunc(findings, func(f preflight.Finding) bool { return f.Name == preflight.FindingStopped }) || !job.Stopped() {
			t.Fatalf("stopped %v, found %+v", job.Stopped(), findings)
		}
		job.Signal(unix.SIGCONT)
		job.Runs()
	})
}
