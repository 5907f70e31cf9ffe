package restore

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/inject"
	"cucriu/internal/testenv"
)

// TestWithoutTheHookTheThreadsWait, whoever continues them: nobody may run with memory that is not there.
func TestWithoutTheHookTheThreadsWait(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := host.Dump(job)
		testenv.Eventually(t, testenv.Soon, "nobody works on the dump any more",
			func() bool { return host.LastOutcome() != "" })
		if run := host.RunCriuAlone("restore", images, "-d"); run.Err != nil {
			t.Fatalf("criu restore: %v\n%s", run.Err, run.Lines())
		}
		if err := unix.Kill(job.PID, unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "it was continued", func() bool { return !job.Stopped() })
		if parked, err := inject.LooksParked(job.PID); err != nil || !parked {
			t.Errorf("parked %t: %v", parked, err)
		}
		// What brings it back is said, whichever command is tried.
		says := fmt.Sprintf("process %d was restored from %s without cucriu-hook, and can never run", job.PID, images)
		remedy := fmt.Sprintf("kill -9 %d, then cucriu restore -D %s", job.PID, images)
		for _, args := range [][]string{
			{"recover"}, {"status"}, {"resume", "-p", job.Root()}, {"resume", "-p", job.Root(), "--force"}, {"check", "-t", job.Root()}, {"dump", "-t", job.Root(), "-D", images + "2"},
		} {
			if out, _ := host.Cucriu(args...); !strings.Contains(out, says) || !strings.Contains(out, remedy) {
				t.Errorf("cucriu %v does not say %q and %q:\n%s", args, says, remedy, out)
			}
		}
		job.Kill()

		// So it is if a restore has failed, and was to leave it.
		host.Faults("restore return 999")
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nrestore: {on_failure: leave}\n"))
		if out, err := host.Cucriu("restore", "-D", images); err == nil {
			t.Fatalf("a restore that fails succeeds:\n%s", out)
		}
		host.Faults()
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\n"))
		says = fmt.Sprintf("process %d was restored from %s by a restore that failed (restore.on_failure: leave), "+
			"and can never run: kill -9 %[1]d, then cucriu restore -D %[2]s", job.PID, images)
		for _, args := range [][]string{
			{"recover"}, {"resume", "-p", job.Root()}, {"dump", "-t", job.Root(), "-D", images + "2"},
		} {
			if out, _ := host.Cucriu(args...); !strings.Contains(out, says) {
				t.Errorf("cucriu %v does not say %q:\n%s", args, says, out)
			}
		}
		job.Kill()

		// So it is if the dump left the job running.
		if out, err := host.Cucriu("restore", "-D", images); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		job.Runs()
		again := images + "3"
		if out, err := host.Cucriu("dump", "-t", job.Root(), "-D", again, "-R"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		job.Kill()
		if run := host.RunCriuAlone("restore", again, "-d", "--file-locks"); run.Err != nil {
			t.Fatalf("criu restore: %v\n%s", run.Err, run.Lines())
		}
		says, remedy = fmt.Sprintf("restored from %s without cucriu-hook",
			again), fmt.Sprintf("kill -9 %d, then cucriu restore -D %s", job.PID, again)
		for _, args := range [][]string{{"recover"}, {"status"}, {"resume", "-p", job.Root()}} {
			if out, _ := host.Cucriu(args...); !strings.Contains(out, says) || !strings.Contains(out, remedy) {
				t.Errorf("cucriu %v does not say %q and %q:\n%s", args, says, remedy, out)
			}
		}
		job.Kill()
		if out, err := host.Cucriu("restore", "-D", again); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		job.Runs()

		// A suspended one whose run directory is gone.
		if out, err := host.Cucriu("suspend", "-p", job.Root()); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		testenv.Eventually(t, testenv.Soon, "no watcher is at work any more", func() bool { // it could have parked it
			return !slices.ContainsFunc(testenv.PIDs(), func(pid int) bool {
				return slices.Contains(testenv.CommandLine(pid), "watch")
			})
		})
		host.Setenv("CUCRIU_RUN_DIR", t.TempDir())
		for _, args := range [][]string{{"recover"}, {"status"}, {"resume", "-p", job.Root()}} {
			if out, _ := host.Cucriu(args...); !strings.Contains(out, "with another run directory than ") ||
				!strings.Contains(out, "set CUCRIU_RUN_DIR to that one") {
				t.Errorf("cucriu %v does not say what holds the process:\n%s", args, out)
			}
		}
		host.Setenv("CUCRIU_RUN_DIR", host.RunDir)
		if out, err := host.Cucriu("resume", "-p", job.Root()); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		job.Runs()
	})
}

func TestARestoredProcessIsDumpedAndRestoredAgain(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		for round := range 2 {
			before := job.Ticks()[0]
			images := host.Dump(job)
			testenv.Eventually(t, testenv.Soon, "the job has ended", func() bool { return !job.Alive() }) // criu does not wait for it
			host.Restore(images)
			job.Runs()
			if after := job.Ticks()[0]; after <= before {
				t.Fatalf("round %d: the counter was %d before and is %d after", round, before, after)
			}
		}
	})
}

// remap restores a job with a map, and returns the GPUs that it then uses, as indexes on
// the host.
func remap(t *testing.T, host *testenv.Host, images, yaml string, job *testenv.Job) []int {
	t.Helper()
	host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\n"+yaml))
	host.Restore(images)
	job.Runs()
	var on []int
	for _, gpu := range job.MustStatus(0).GPUs {
		on = append(on, slices.Index(host.UUIDs(), gpu.UUID))
	}
	return on
}

func TestAJobGoesOnOnTheGPUsThatTheMapNames(t *testing.T) {
	testenv.Parallel(t)
	for _, test := range []struct {
		name, gpus, yaml string
		want             []int
	}{
		{"identity", "0,1", "", []int{0, 1}},
		{"zero to one", "0", "gpus: {map: [{from: {index: 0}, to: {index: 1}}]}", []int{1}},
		{"swap", "0,1", "gpus: {map: [{from: {index: 0}, to: {index: 1}}, {from: {index: 1}, to: {index: 0}}]}", []int{1, 0}},
		{"one pair named, the other filled", "0,1", "gpus: {map: [{from: {index: 1}, to: {index: 0}}]}", []int{1, 0}},
	} {
		t.Run(strings.ReplaceAll(test.name, " ", "-"), func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 2)
				job := host.Start(1, "--gpus", test.gpus)
				images := host.Dump(job)
				if on := remap(t, host, images, test.yaml, job); !slices.Equal(on, test.want) {
					t.Fatalf("the job is on GPUs %v, want %v", on, test.want)
				}
			})
		})
	}
}

// TestALockOfAStoppedThreadIsFreed: the driver takes memory from the job's allocator during a checkpoint
// and a restore, and a thread of the job was stopped while it held the allocator's lock.
func TestALockOfAStoppedThreadIsFreed(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job := host.Start(1, "--gpus", "0", "--mib", "32", "--trim", "--spin", "stream-sync") // enough that it is prefaulted
		for range 2 {
			testenv.DumpAndLeave(t, host, job, "-R")
			job.Runs()
		}
		testenv.Exits(t, host, 0, "suspend", "-p", job.Root())
		testenv.Exits(t, host, 0, "resume", "-p", job.Root(), "--map", "0=1")
		job.Runs()
		images := host.Dump(job)
		host.Restore(images)
		job.Runs()
	})
}

func TestTheCommandLinesMapReplacesTheConfigurations(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job := host.Start(1, "--gpus", "0,1")
		images := host.Dump(job)
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\ngpus: {map: [{from: {index: 0}, to: {index: 0}}]}\n"))
		uuids := host.UUIDs()
		plan := testenv.Exits(t, host, 0, "map", "-D", images, "--json", "--map", "0=1")
		if !strings.Contains(strings.Join(strings.Fields(plan), ""), fmt.Sprintf(`"from":"%s","to":"%s"`, uuids[0], uuids[1])) {
			t.Errorf("the plan does not follow --map:\n%s", plan)
		}
		testenv.Exits(t, host, testenv.StatusRefused, "restore", "-D", images, "--map", "0=7")
		testenv.Exits(t, host, 0, "restore", "-D", images, "--map", "0="+uuids[1], "--map", uuids[1]+"=0")
		isOn(t, host, job, 1, 0)
	})
}

// TestARestoreKeepsItsMap: who completes a restore whose program was killed follows the map that it was begun
// with, be it the watcher or another restore, which has a map of its own.
func TestARestoreKeepsItsMap(t *testing.T) {
	t.Run("watcher", func(t *testing.T) {
		testenv.Isolated(t, func(t *testing.T) {
			host := testenv.NewHost(t, 2)
			job := host.Start(1, "--gpus", "0,1")
			images := host.Dump(job)
			host.UseFailpoint("restore.post-resume=kill")
			if err := host.CucriuCommand("restore", "-D", images, "--map", "0=1", "--map", "1=0").Run(); err == nil {
				t.Fatal("the command was not killed")
			}
			testenv.Eventually(t, testenv.Soon, "the restore has an outcome", func() bool { return host.RestoreOutcome() != "" })
			isOn(t, host, job, 1, 0)
		})
	})
	t.Run("another restore", func(t *testing.T) {
		testenv.Isolated(t, func(t *testing.T) {
			host := testenv.NewHost(t, 2)
			host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nforce: [gpu-in-use]\n")) // by the other one
			job, other := host.Start(1, "--gpus", "0,1"), host.Start(1, "--gpus", "0,1")
			images, others := host.Dump(job), host.Dump(other)
			host.UseFailpoint("restore.post-resume=kill-watcher+kill")
			host.Restore(images)
			testenv.Eventually(t, testenv.Soon, "criu has let go of the job", job.Stopped)
			host.Setenv("CUCRIU_FAILPOINT", "")
			testenv.Exits(t, host, 0, "restore", "-D", others, "--map", "0=1", "--map", "1=0")
			isOn(t, host, other, 1, 0)
			isOn(t, host, job, 0, 1)
		})
	})
}

// isOn checks that the job runs, and on which GPUs of the host.
func isOn(t *testing.T, host *testenv.Host, job *testenv.Job, want ...int) {
	t.Helper()
	job.Runs()
	uuids := host.UUIDs()
	for i, gpu := range job.MustStatus(0).GPUs {
		if gpu.UUID != uuids[want[i]] {
			t.Errorf("GPU %d of the job is %s, and not %s", i, gpu.UUID, uuids[want[i]])
		}
	}
}

func TestAJobGoesOnOnTheGPUsOfAnotherHost(t *testing.T) {
	testenv.Parallel(t)
	for _, test := range []struct {
		name        string
		gpus        int // of the destination
		yaml        bool
		destination []int
	}{
		{"two GPUs filled", 2, false, []int{0, 1}},
		{"two GPUs by YAML", 2, true, []int{1, 0}},
		{"three GPUs filled", 3, false, []int{0, 1}},
		{"three GPUs by YAML", 3, true, []int{1, 0}},
	} {
		t.Run(strings.ReplaceAll(test.name, " ", "-"), func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				source, destination := testenv.NewHost(t, 2), testenv.NewHost(t, test.gpus)
				a, b := source.UUIDs(), destination.UUIDs()
				if slices.ContainsFunc(a, func(uuid string) bool { return slices.Contains(b, uuid) }) {
					t.Fatalf("the hosts share a GPU: %v %v", a, b)
				}
				job := source.Start(1, "--gpus", "0,1")
				images := source.Dump(job)
				copied := filepath.Join(t.TempDir(), "copied")
				testenv.Copy(t, images, copied)
				yaml := ""
				if test.yaml {
					yaml = fmt.Sprintf("gpus:\n  map:\n  - {from: %s, to: %s}\n  - {from: %s, to: %s}\n", a[0], b[1], a[1], b[0])
				}
				if on := remap(t, destination, copied, yaml, job); !slices.Equal(on, test.destination) {
					t.Fatalf("the job is on GPUs %v, want %v", on, test.destination)
				}
			})
		})
	}
}

func TestAMapThatCannotBeMetCreatesNothing(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		source, smaller := testenv.NewHost(t, 2), testenv.NewHost(t, 1)
		job := source.Start(1, "--gpus", "0,1")
		images := source.Dump(job)
		testenv.Eventually(t, testenv.Soon, "the job has ended", func() bool { return !job.Alive() }) // criu does not wait for it
		run := smaller.TryRestore(images)
		if run.Err == nil || job.Alive() {
			t.Fatalf("restored two GPUs on one: %v\n%s", run.Err, run.Lines())
		}
		if !strings.Contains(run.Log, "sees fewer") && !strings.Contains(run.Log, "2") {
			t.Errorf("the log does not say why:\n%s", run.Lines())
		}
		source.Restore(images)
		job.Runs()
	})
}

func TestRestoreIsRefusedWhileMemoryIsShort(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "64")
		job := host.Start(1, "--mib", "40")
		images := host.Dump(job)
		other := host.Start(1, "--mib", "40")
		run := host.TryRestore(images)
		if run.Err == nil || job.Alive() || !strings.Contains(run.Log, "MiB free") {
			t.Fatalf("restored with too little GPU memory: %v\n%s", run.Err, run.Lines())
		}
		other.Kill() // its memory is free when its last thread has ended
		host.Restore(images)
		job.Runs()
	})
}

func TestTreeOfAShellAndFourCUDAProcesses(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.StartUnder([]string{"/bin/sh", "-c", `"$@" & wait`, "sh"}, 4, "--procs", "4")
		images := host.Dump(job)
		testenv.Eventually(t, testenv.Soon, "the job has ended", func() bool { return !job.Alive() })
		host.Restore(images)
		job.Runs()
	})
}

func TestATreeWithoutCUDAIsLeftToCriu(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		host.Setenv("CUCRIU_LIBCUDA", "/nonexistent/libcuda.so.1")
		pid := host.Spawn(t.TempDir(), "/bin/sleep", "1000")
		job := testenv.JobOf(t, pid)
		images := host.Dump(job)
		testenv.Eventually(t, testenv.Soon, "sleep is reaped", job.Gone) // the hook waits for that only if there is CUDA
		host.Restore(images)
		if !job.Alive() {
			t.Fatal("sleep is gone")
		}
	})
}

func TestAProcessStoppedBeforehandStaysStopped(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--threads", "2")
		job.Signal(unix.SIGSTOP)
		testenv.Eventually(t, testenv.Soon, "the job stops", job.Stopped)
		images := host.Dump(job)
		host.Restore(images)
		testenv.Eventually(t, testenv.Soon, "the job is stopped again", job.Stopped) // criu does not wait for it
		job.Signal(unix.SIGCONT)
		job.Runs()
	})
}

func TestAJobIsDumpedRightAfterADumpThatLeftItRunning(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		host.Dump(job, "--leave-running")
		images := host.Dump(job) // its watcher may still be bringing it back
		host.Restore(images)
		job.Runs()
	})
}

func TestARefusedDumpLeavesTheImageOfAnEarlierOneGood(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := host.Dump(job, "--leave-running")
		job.Runs()
		host.UseFailpoint("dump.lock=error")
		if run := host.TryDump(job, images); run.Err == nil {
			t.Fatal("criu dumped although its hook failed")
		}
		job.Runs()
		job.Kill()
		host.Setenv("CUCRIU_FAILPOINT", "")
		host.Restore(images)
		job.Runs()
	})
}

func TestAnImageThatLostItsManifestDoesNotPassForRestored(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := host.Dump(job)
		manifest := filepath.Join(images, imagedir.ManifestName)
		if err := os.Rename(manifest, manifest+".lost"); err != nil {
			t.Fatal(err)
		}
		run := host.TryRestore(images)
		testenv.Eventually(t, testenv.Soon, "the job is ended", job.Gone)
		if !strings.Contains(run.Log, "image is incomplete") || !strings.Contains(run.Log, imagedir.ManifestName+" is missing") {
			t.Errorf("the log does not say why:\n%s", run.Lines())
		}
		if err := os.Rename(manifest+".lost", manifest); err != nil {
			t.Fatal(err)
		}
		host.Restore(images)
		job.Runs()
	})
}

func TestAFrozenV1ContainerIsDumpedAndRestored(t *testing.T) {
	testenv.Parallel(t)
	for _, engine := range []string{"freezes first", "leaves it to criu"} {
		t.Run(strings.ReplaceAll(engine, " ", "-"), func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				const hierarchy = "/sys/fs/cgroup/freezer"
				if _, err := os.Stat(filepath.Join(hierarchy, "cgroup.procs")); err != nil {
					t.Skip("this kernel mounts no v1 freezer hierarchy")
				}
				host := testenv.NewHost(t, 1)
				job := host.Start(1, "--spin", "stream-sync")
				group := filepath.Join(hierarchy, "cucriu-e2e-"+strconv.FormatInt(time.Now().UnixNano(), 36))
				if err := os.Mkdir(group, 0o755); err != nil {
					t.Fatal(err)
				}
				write := func(name, text string) {
					t.Helper()
					if err := os.WriteFile(filepath.Join(group, name), []byte(text), 0); err != nil {
						t.Fatal(err)
					}
				}
				t.Cleanup(func() {
					write("freezer.state", "THAWED") // a frozen process does not die
					job.Kill()
					if err := os.Remove(group); err != nil {
						t.Error(err)
					}
				})
				write("cgroup.procs", job.Root())
				if engine == "freezes first" {
					write("freezer.state", "FROZEN")
				}
				images := host.Dump(job, "--freeze-cgroup", group, "--manage-cgroups=ignore")
				write("freezer.state", "THAWED") // as the engine would
				host.Restore(images, "--manage-cgroups=ignore")
				job.Runs()
			})
		})
	}
}

// TestTheExampleConfigurationOfCriuIsEnough: the hook comes from criu's configuration file,
// as in the examples, and so does an option that is nowhere else.
func TestTheExampleConfigurationOfCriuIsEnough(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		text := host.ExampleConfiguration("criu.conf")
		config := filepath.Join(t.TempDir(), "criu.conf")
		if err := os.WriteFile(config, []byte(text+"leave-stopped\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		job := host.Start(1)
		images := t.TempDir()
		out, err := host.Command(testenv.Criu(t), "dump", "--config", config, "-t", job.Root(), "-D", images, "-o", "dump.log").CombinedOutput()
		if err != nil {
			t.Fatalf("criu dump: %v\n%s", err, out)
		}
		host.WaitOutcome("stopped")
		testenv.Eventually(t, testenv.Soon, "leave-stopped in criu's configuration leaves the job stopped", job.Stopped)
		job.Kill()
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err = host.Command(testenv.Criu(t), "restore", "--config", config, "-d", "-D", images, "-o", "restore.log").CombinedOutput()
		if err != nil {
			t.Fatalf("criu restore: %v\n%s", err, out)
		}
		job.Runs()
	})
}

// TestProcessesWithoutCUDAWaitForTheGPUState: a process that ran earlier, and wrote to a
// file of its own, would spoil the image in case the restore fails.
func TestProcessesWithoutCUDAWaitForTheGPUState(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		written := filepath.Join(t.TempDir(), "written")
		job := host.StartUnder([]string{"/bin/sh", "-c", `"$@" & exec >` + written + `; while :; do echo line; sleep 0.01; done`, "sh"}, 1)
		size := func() int64 {
			info, err := os.Stat(written)
			if err != nil {
				t.Fatal(err)
			}
			return info.Size()
		}
		images := host.Dump(job)
		before := size()
		host.Faults("restore delay 500ms", "restore return 999")
		run := host.TryRestore(images)
		testenv.Eventually(t, testenv.Soon, "the job is ended", job.Gone)
		testenv.Eventually(t, testenv.Soon, "the restore is taken to an end", func() bool { return host.RestoreOutcome() != "" })
		if host.RestoreOutcome() != "killed" {
			t.Fatalf("outcome %s\n%s", host.RestoreOutcome(), run.Lines())
		}
		if size() != before {
			t.Errorf("the shell wrote %d bytes before the GPU state was there", size()-before)
		}
		host.Faults()
		host.Restore(images)
		job.Runs()
		testenv.Eventually(t, testenv.Soon, "the shell goes on", func() bool { return size() > before })
	})
}

func TestAProcessWithoutCUDAThatWasStoppedStaysStopped(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		pidFile := filepath.Join(t.TempDir(), "pid")
		job := host.StartUnder([]string{"/bin/sh", "-c", `sleep 1000 & echo $! >` + pidFile + `; kill -STOP $!; "$@" & wait`, "sh"}, 1)
		data, err := os.ReadFile(pidFile)
		if err != nil {
			t.Fatal(err)
		}
		sleeper, _ := strconv.Atoi(strings.TrimSpace(string(data)))
		host.Restore(host.Dump(job))
		job.Runs()
		testenv.Eventually(t, testenv.Soon, "sleep is stopped again", testenv.JobOf(t, sleeper).Stopped)
	})
}

// TestTheNameOfACUDASocketIsTaken: libcuda names a socket after the numbers of its pid namespace and
// process. Somebody may have the name when the process is restored.
func TestTheNameOfACUDASocketIsTaken(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		var namespace unix.Stat_t
		if err := unix.Stat("/proc/self/ns/pid", &namespace); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("@cuda-uvmfd-%d-%d\x00", namespace.Ino, job.PID)
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		before, err := os.ReadFile(filepath.Join(images, "files.img"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(before), "\x00"+name[1:]) {
			t.Fatalf("the image has no socket %q", name)
		}
		holder, err := net.Listen("unixpacket", name)
		if err != nil {
			t.Fatal(err)
		}
		testenv.Exits(t, host, 0, "restore", "-D", images)
		job.Runs()
		job.Kill()
		if after, err := os.ReadFile(filepath.Join(images, "files.img")); err != nil || string(after) != string(before) {
			t.Errorf("the image is changed: %v", err)
		}
		holder.Close()
		testenv.Exits(t, host, 0, "restore", "-D", images)
		job.Runs()
		if holder, err := net.Listen("unixpacket", name); err == nil {
			holder.Close()
			t.Error("the job has not got the name that is free again")
		}
	})
}
