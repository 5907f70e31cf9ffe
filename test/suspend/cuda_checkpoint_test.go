package suspend

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// cudaCheckpoint runs cucriu's cuda-checkpoint. It fails the test unless that exits with the status and
// prints the text: all of it after a success, else a part.
func cudaCheckpoint(t *testing.T, host *testenv.Host, status int, says string, args ...string) {
	t.Helper()
	out, err := host.Command(host.CUDACheckpoint(), args...).CombinedOutput()
	text := string(out)
	if testenv.ExitStatus(err) != status || status == 0 && text != says || !strings.Contains(text, says) {
		t.Fatalf("cuda-checkpoint %v: %v, want exit status %d and %q\n%s", args, err, status, says, text)
	}
}

// atTheLock waits until no thread of a locked job can synchronize any more.
func atTheLock(t *testing.T, job *testenv.Job) {
	t.Helper()
	testenv.Eventually(t, testenv.Soon, "it waits at the lock", func() bool {
		states, err := proc.ThreadStates(job.PID)
		return err == nil && !strings.ContainsAny(states, "RD")
	})
}

func TestCudaCheckpointTakesEachStepAndNoOther(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		pid := job.Root()
		tid, err := host.Driver().Process(job.PID).RestoreThreadID(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		cudaCheckpoint(t, host, 0, fmt.Sprintln(tid), "--get-restore-tid", "--pid", pid)
		steps := map[string][]string{ // the action and the state that follows, by state
			"running": {"lock", "locked"}, "locked": {"checkpoint", "checkpointed"}, "checkpointed": {"restore", "locked"},
		}
		state := "running"
		for range 3 {
			cudaCheckpoint(t, host, 0, state+"\n", "--get-state", "--pid", pid)
			cudaCheckpoint(t, host, 0, state+"\n", "--get-state", "-p", strconv.Itoa(tid)) // as criu's plugin asks
			for _, action := range []string{"lock", "checkpoint", "restore", "unlock"} {
				if action != steps[state][0] && (state != "locked" || action != "unlock") {
					cudaCheckpoint(t, host, 1, "Could not "+action+" on process ID "+pid+": ", "--action", action, "--pid", pid)
				}
			}
			cudaCheckpoint(t, host, 0, "", "--action", steps[state][0], "--pid", pid)
			state = steps[state][1]
			if state == "locked" {
				cudaCheckpoint(t, host, 1, "neither running nor checkpointed", "--toggle", "--pid", pid)
				atTheLock(t, job)
			}
		}
		cudaCheckpoint(t, host, 0, "", "--action", "unlock", "--pid", pid)
		cudaCheckpoint(t, host, 0, "running\n", "--get-state", "--pid", pid)
		job.Runs()
	})
}

func TestCudaCheckpointToggles(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--tick-ms", "1000") // it sleeps after a tick, and does not synchronize
		for _, state := range []string{"checkpointed\n", "running\n"} {
			cudaCheckpoint(t, host, 0, "", "--toggle", "--pid", job.Root())
			cudaCheckpoint(t, host, 0, state, "--get-state", "--pid", job.Root())
		}
		job.Runs()
	})
}

func TestCudaCheckpointGivesUpALockAfterItsTimeoutOrASignal(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		host.Faults("lock return 600")
		cudaCheckpoint(t, host, 1, "in flight", "--action", "lock", "--pid", job.Root(), "--timeout", "200")
		cudaCheckpoint(t, host, 1, "in flight", "--toggle", "-p", job.Root(), "-t", "200")
		host.Faults("lock hang")
		lock, out := host.Command(host.CUDACheckpoint(), "--action", "lock", "--pid", job.Root()), new(testenv.Output)
		lock.Stdout, lock.Stderr = out, out
		if err := lock.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "it calls the driver, which speaks to the job through a pipe", func() bool {
			its, _ := proc.Descriptors(lock.Process.Pid)
			of, _ := proc.Descriptors(job.PID)
			for _, pipe := range its {
				if strings.HasPrefix(pipe, "pipe:") && slices.Contains(slices.Collect(maps.Values(of)), pipe) {
					return true
				}
			}
			return false
		})
		_ = lock.Process.Signal(unix.SIGTERM)
		testenv.Eventually(t, testenv.Soon, "the signal is taken", func() bool { return strings.Contains(out.String(), "cancelling") })
		host.Faults()
		if err := lock.Wait(); testenv.ExitStatus(err) != 1 {
			t.Errorf("lock, cancelled: %v\n%s", err, out)
		}
		cudaCheckpoint(t, host, 0, "running\n", "--get-state", "--pid", job.Root())
		job.Runs()
	})
}

func TestCudaCheckpointRestoresToTheGPUsOfItsMap(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job := host.Start(1, "--gpus", "0")
		gpus := host.UUIDs()
		cudaCheckpoint(t, host, 0, "", "--action", "lock", "--pid", job.Root())
		atTheLock(t, job)
		cudaCheckpoint(t, host, 0, "", "--action", "checkpoint", "--pid", job.Root())
		cudaCheckpoint(t, host, 1, "map was refused", "--action", "restore", "--pid", job.Root(), "--device-map", gpus[0]+"="+gpus[1])
		whole := gpus[0] + "=" + gpus[1] + "," + gpus[1] + "=" + gpus[0]
		for _, uuid := range gpus[2:] {
			whole += "," + uuid + "=" + uuid
		}
		cudaCheckpoint(t, host, 0, "", "--action", "restore", "--pid", job.Root(), "-d", whole)
		cudaCheckpoint(t, host, 0, "", "--action", "unlock", "--pid", job.Root())
		job.Runs()
		if got := job.MustStatus(0).GPUs[0].UUID; got != gpus[1] {
			t.Errorf("the job is on %s, want %s", got, gpus[1])
		}
	})
}

func TestCudaCheckpointRefusesWhatCouldNotBeRestored(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job := host.Start(2, "--ipc")
		for i := range 2 {
			pid := strconv.Itoa(job.MustStatus(i).PID)
			cudaCheckpoint(t, host, 1, "refused, nothing was touched: shared-gpu-memory", "--action", "lock", "--pid", pid)
			cudaCheckpoint(t, host, 1, "refused, nothing was touched: shared-gpu-memory", "--toggle", "--pid", pid)
			cudaCheckpoint(t, host, 0, "running\n", "--get-state", "--pid", pid)
		}
		job.Runs()
		pid := strconv.Itoa(job.MustStatus(0).PID)
		cudaCheckpoint(t, host, 2, "cannot be forced", "--action", "lock", "--pid", pid, "--force", "cuda-state")
		for _, override := range []string{"option", "environment"} {
			lock := host.Command(host.CUDACheckpoint(), "--action", "lock", "--pid", pid)
			if override == "option" {
				lock.Args = append(lock.Args, "--force", "shared-gpu-memory")
			} else {
				lock.Env = append(lock.Env, "CUDA_CHECKPOINT_FORCE=shared-gpu-memory")
			}
			if out, err := lock.CombinedOutput(); err != nil || !strings.Contains(string(out), "overridden: shared-gpu-memory") {
				t.Fatalf("lock, overridden by an %s: %v\n%s", override, err, out)
			}
			cudaCheckpoint(t, host, 1, "refused, nothing was touched: shared-gpu-memory", "--action", "checkpoint", "--pid", pid)
			cudaCheckpoint(t, host, 0, "", "--action", "unlock", "--pid", pid)
		}
		job.Runs()
	})
}

// TestCudaCheckpointUndoesAToggleThatTheDriverRefuses: NVIDIA's leaves the process locked.
func TestCudaCheckpointUndoesAToggleThatTheDriverRefuses(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--managed")
		cudaCheckpoint(t, host, 1, "managed memory", "--toggle", "--pid", job.Root())
		cudaCheckpoint(t, host, 0, "running\n", "--get-state", "--pid", job.Root())
		job.Runs()
	})
}

func TestCudaCheckpointRestoresOnlyWithEnoughMemory(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "256")
		job := host.Start(1, "--mib", "150", "--tick-ms", "1000")
		cudaCheckpoint(t, host, 0, "", "--toggle", "--pid", job.Root())
		other := host.Start(1, "--mib", "150")
		cudaCheckpoint(t, host, 1, "MiB free", "--toggle", "--pid", job.Root())
		cudaCheckpoint(t, host, 1, "MiB free", "--action", "restore", "--pid", job.Root())
		other.Kill()
		cudaCheckpoint(t, host, 0, "", "--toggle", "--pid", job.Root())
		job.Runs()
	})
}

func TestCudaCheckpointNeverWaitsForAProcessThatCannotAnswer(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		tid, err := host.Driver().Process(job.PID).RestoreThreadID(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		job.Signal(unix.SIGSTOP)
		testenv.Eventually(t, testenv.Soon, "it is stopped", job.Stopped)
		cudaCheckpoint(t, host, 0, fmt.Sprintln(tid), "--get-restore-tid", "--pid", job.Root())
		for _, args := range [][]string{{"--get-state"}, {"--toggle"}, {"--action", "lock"}} {
			cudaCheckpoint(t, host, 1, "kill -CONT", append(args, "--pid", job.Root())...)
		}
		job.Signal(unix.SIGCONT)
		job.Runs()

		testenv.Exits(t, host, 0, "suspend", "-p", job.Root())
		for _, args := range [][]string{{"--toggle"}, {"--action", "restore"}, {"--action", "unlock"}} {
			cudaCheckpoint(t, host, 1, "cucriu resume", append(args, "--pid", job.Root())...)
		}
		testenv.Exits(t, host, 0, "resume", "-p", job.Root())
		job.Runs()
	})
}

func TestCudaCheckpointOnMistakes(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		self := strconv.Itoa(os.Getpid())
		for _, test := range []struct {
			status int
			says   string
			args   string
		}{
			{1, "Could not lock on process ID 4000000: there is no such process", "--action lock --pid 4000000"},
			{1, "there is no such process", "--get-state --pid 4000000"},
			{1, "the process does not use CUDA", "--get-restore-tid --pid " + self},
			{1, "the process does not use CUDA", "--toggle --pid " + self},
			{2, "name an operation", ""},
			{2, "--pid must name a process", "--get-state"},
			{2, "--pid must name a process", "--get-state --pid -3"},
			{2, `invalid value "x" for flag -pid`, "--get-state --pid x"},
			{2, "want lock, checkpoint, restore or unlock", "--action stop --pid 1"},
			{2, "only one operation", "--toggle --get-state --pid 1"},
			{2, "not defined: -foo", "--foo"},
			{2, `unknown argument "4711"`, "--toggle 4711"},
			{2, "--timeout is for lock and --toggle", "--action restore --pid 1 --timeout 5"},
			{2, "--device-map is for restore and --toggle", "--action lock --pid 1 --device-map " + cudackpt.UUID{1}.String() + "=" + cudackpt.UUID{2}.String()},
			{2, "is not the UUID of a GPU", "--action restore --pid 1 --device-map 0=1"},
		} {
			cudaCheckpoint(t, host, test.status, test.says, strings.Fields(test.args)...)
		}
		for _, help := range []string{"-h", "--help"} {
			out, err := host.Command(host.CUDACheckpoint(), help).Output()
			if err != nil || !strings.Contains(string(out[:min(len(out), 2047)]), "--action") { // that is as far as criu's plugin looks
				t.Errorf("cuda-checkpoint %s: %v\n%s", help, err, out)
			}
		}
	})
}

// TestCriusPluginWorksWithCudaCheckpoint and without the hook.
func TestCriusPluginWorksWithCudaCheckpoint(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		plugin := host.WithCriusPlugin()
		job := host.Start(2, "--procs", "2")
		images := filepath.Join(t.TempDir(), "images")
		if run := host.RunCriuAlone("dump", images, append(plugin, "-t", job.Root())...); run.Err != nil {
			t.Fatalf("criu dump: %v", run.Err)
		}
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		if run := host.RunCriuAlone("restore", images, append(plugin, "-d")...); run.Err != nil {
			t.Fatalf("criu restore: %v", run.Err)
		}
		job.Runs()
		// An image that the plugin has made is its to restore when the hook is configured, too.
		again := filepath.Join(t.TempDir(), "images")
		if run := host.RunCriuAlone("dump", again, append(plugin, "-t", job.Root())...); run.Err != nil {
			t.Fatalf("criu dump: %v", run.Err)
		}
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		if run := host.RunCriu("restore", again, append(plugin, "-d")...); run.Err != nil {
			t.Fatalf("criu restore with plugin and hook: %v", run.Err)
		}
		job.Runs()
	})
}

// TestCriusPluginLeavesAJobThatIsRefusedAsItWas whether that is at the lock or at the checkpoint.
func TestCriusPluginLeavesAJobThatIsRefusedAsItWas(t *testing.T) {
	testenv.Parallel(t)
	for _, test := range []struct {
		name, says string
		processes  int
		args       []string
	}{
		{"at-the-lock", "shared-gpu-memory", 2, []string{"--ipc"}},
		{"at-the-checkpoint", "CHECKPOINT_DEVICES failed", 1, []string{"--managed"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 2)
				plugin := host.WithCriusPlugin()
				job := host.Start(test.processes, test.args...)
				run := host.RunCriuAlone("dump", filepath.Join(t.TempDir(), "images"), append(plugin, "-t", job.Root())...)
				if run.Err == nil || !strings.Contains(run.Log, test.says) {
					t.Errorf("criu dump: %v, want %q", run.Err, test.says)
				}
				job.Runs()
			})
		})
	}
}

// TestCriusPluginStaysOutOfTheHooksWay if it runs cucriu's cuda-checkpoint: it works without a map, so
// only the hook moves the job to the other GPU.
func TestCriusPluginStaysOutOfTheHooksWay(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		plugin := host.WithCriusPlugin()
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nlock: {timeout: 60s}\ngpus: {map: [{from: {index: 0}, to: {index: 1}}, {from: {index: 1}, to: {index: 0}}]}\n"))
		job := host.Start(1, "--gpus", "0", "--spin", "stream-sync")
		for _, want := range []int{1, 0} {
			host.Restore(host.Dump(job, plugin...), plugin...)
			job.Runs()
			if got := job.MustStatus(0).GPUs[0].UUID; got != host.UUIDs()[want] {
				t.Errorf("the job is on %s, want %s", got, host.UUIDs()[want])
			}
		}
		// The image asks for no plugin.
		host.Restore(host.Dump(job, plugin...), "--libdir", t.TempDir())
		job.Runs()
	})
}

// TestASuspendThatComesTooLateLetsCudaCheckpointRestore what that had begun to checkpoint just before.
func TestASuspendThatComesTooLateLetsCudaCheckpointRestore(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--tick-ms", "1000")
		note := filepath.Join(host.RunDir, "cuda-checkpoint", job.Root()+".json")
		cudaCheckpoint(t, host, 0, "", "--toggle", "--pid", job.Root())
		noted, err := os.ReadFile(note)
		if err != nil {
			t.Fatal(err)
		}
		cudaCheckpoint(t, host, 0, "", "--toggle", "--pid", job.Root())

		marks := t.TempDir()
		host.UseFailpoint("suspend.lock=run " + testenv.WaitsForGo(t, marks))
		suspend := host.CucriuCommand("suspend", "-p", job.Root())
		if err := suspend.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "it is about to lock", func() bool { return testenv.Exists(filepath.Join(marks, "reached")) })
		target := host.Driver().Process(job.PID) // a cuda-checkpoint that has looked before
		if err := target.Lock(t.Context(), cudackpt.LockOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := target.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		testenv.WriteFile(t, note, string(noted))
		testenv.WriteFile(t, filepath.Join(marks, "go"), "")
		if status := testenv.ExitStatus(suspend.Wait()); status != 4 {
			t.Errorf("exit status %d", status)
		}
		host.Setenv("CUCRIU_FAILPOINT", "")
		cudaCheckpoint(t, host, 1, "is being suspended", "--action", "checkpoint", "--pid", job.Root())
		cudaCheckpoint(t, host, 0, "", "--toggle", "--pid", job.Root())
		cudaCheckpoint(t, host, 0, "running\n", "--get-state", "--pid", job.Root())
		job.Runs()
	})
}
