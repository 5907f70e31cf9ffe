package cudackpt_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cucriu/cudackpt"
)

func TestMissingLibraryIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	_, err := cudackpt.Open(cudackpt.WithLibrary(path))
	missing, ok := errors.AsType[*cudackpt.LibraryError](err)
	if !ok || len(missing.Tried) != 1 || missing.Tried[0] != path {
		t.Fatalf("error is %#v", err)
	}
	for _, says := range []string{path, "No such file", "install the NVIDIA driver"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("error %q does not say %q", err, says)
		}
	}
}

func TestOtherLibrariesAreNoDriver(t *testing.T) {
	_, err := cudackpt.Open(cudackpt.WithLibrary("libc.so.6"))
	if err == nil || !strings.Contains(err.Error(), "libc.so.6 is not a CUDA driver") {
		t.Errorf("error is %v", err)
	}
}

func TestOpenTellsItsVersions(t *testing.T) {
	d := openSim(t)
	if d.CUDAVersion().Major() < 12 {
		t.Errorf("CUDA version is %v", d.CUDAVersion())
	}
	if version, err := d.DriverVersion(); err != nil || !strings.HasPrefix(version, "580.") {
		t.Errorf("driver version is %q, %v", version, err)
	}
	for _, feature := range []cudackpt.Feature{cudackpt.FeatureCheckpoint, cudackpt.FeatureGPUPairs} {
		if err := d.Supports(feature); err != nil {
			t.Error(err)
		}
	}
	if d.Library() != os.Getenv("CUCRIU_LIBCUDA") {
		t.Errorf("library is %s, want %s", d.Library(), os.Getenv("CUCRIU_LIBCUDA"))
	}
}

func TestOpenWithoutArgumentsFindsTheLoadersLibrary(t *testing.T) {
	needSim(t) // puts its directory into LD_LIBRARY_PATH
	d, err := cudackpt.Open()
	if err != nil {
		t.Fatal(err)
	}
	if d.Library() != "libcuda.so.1" {
		t.Errorf("library is %s", d.Library())
	}
}

func TestDriver550IsUnsupportedAndSaysSo(t *testing.T) {
	needSim(t)
	d, err := cudackpt.Open(cudackpt.WithLibrary(artefact("cudasim", "550", "libcuda.so.1")), cudackpt.WithRoot(simRoot()))
	if err != nil {
		t.Fatal(err)
	}
	if d.CUDAVersion().String() != "12.4" {
		t.Errorf("CUDA version is %v", d.CUDAVersion())
	}
	_, err = d.Self().State(within(t, patience))
	unsupported, ok := errors.AsType[*cudackpt.UnsupportedError](err)
	if !ok || !errors.Is(err, cudackpt.ErrNotSupported) || unsupported.MinimumDriver != "570" || unsupported.CUDA != d.CUDAVersion() {
		t.Errorf("error is %#v", err)
	}
	// Everything that does not need the API works.
	if gpus, err := d.HostGPUs(); err != nil || len(gpus) != simGPUs {
		t.Errorf("host GPUs are %v, %v", gpus, err)
	}
}

// On 570 the bytes of the pairs are reserved, so pairs must never be sent.
func TestDriver570RestoresWithoutPairsAlone(t *testing.T) {
	needSim(t)
	d, err := cudackpt.Open(cudackpt.WithLibrary(artefact("cudasim", "570", "libcuda.so.1")), cudackpt.WithRoot(simRoot()))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Supports(cudackpt.FeatureCheckpoint); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LD_LIBRARY_PATH", artefact("cudasim", "570"))
	w := startWork(t, d)
	ctx := within(t, patience)
	if err := w.Suspend(ctx, cudackpt.LockOptions{Timeout: patience}); err != nil {
		t.Fatal(err)
	}
	host, err := d.HostGPUs()
	if err != nil {
		t.Fatal(err)
	}
	swap := []cudackpt.GPUPair{{Old: host[0].UUID, New: host[1].UUID}, {Old: host[1].UUID, New: host[0].UUID}}
	err = w.Resume(ctx, cudackpt.RestoreOptions{Pairs: swap})
	unsupported, ok := errors.AsType[*cudackpt.UnsupportedError](err)
	if !ok || unsupported.MinimumDriver != "580" || unsupported.Feature != cudackpt.FeatureGPUPairs {
		t.Errorf("restore with pairs: %#v", err)
	}
	w.wantState(cudackpt.StateCheckpointed)
	if err := w.Resume(ctx, cudackpt.RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
	w.waitTicks(2)
	w.checkContent()
}

func TestSixCallsTakeAProcessThereAndBack(t *testing.T) {
	d := openSim(t)
	w := startWork(t, d)
	ctx := within(t, patience)
	w.wantState(cudackpt.StateRunning)

	tid, err := w.RestoreThreadID(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", w.PID(), tid)); err != nil || tid == w.PID() {
		t.Errorf("restore thread %d is not a thread of its own: %v", tid, err)
	}
	for _, step := range []struct {
		name string
		do   func() error
		then cudackpt.State
	}{
		{"lock", func() error { return w.Lock(ctx, cudackpt.LockOptions{Timeout: patience}) }, cudackpt.StateLocked},
		{"checkpoint", func() error { return w.Checkpoint(ctx) }, cudackpt.StateCheckpointed},
		{"restore", func() error { return w.Restore(ctx, cudackpt.RestoreOptions{}) }, cudackpt.StateLocked},
		{"unlock", func() error { return w.Unlock(ctx) }, cudackpt.StateRunning},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		w.wantState(step.then)
	}
	w.waitTicks(2)
	w.checkContent()
}

func TestRefusalsCarryTheirCode(t *testing.T) {
	d := openSim(t)
	w := startWork(t, d)
	ctx := within(t, patience)
	err := w.Unlock(ctx)
	refused, ok := errors.AsType[*cudackpt.Error](err)
	if !ok || !errors.Is(err, cudackpt.ResultIllegalState) || refused.PID != w.PID() || refused.Gone {
		t.Errorf("unlock of a running process: %#v", err)
	}
	if _, err := d.Process(startPlain(t)).State(ctx); !errors.Is(err, cudackpt.ResultNotInitialized) {
		t.Errorf("state of a process without CUDA: %v", err)
	}
	if _, err := d.Self().State(ctx); !errors.Is(err, cudackpt.ResultNotInitialized) {
		t.Errorf("state of this process, which never called cuInit: %v", err)
	}
	_, err = d.Process(1<<22 + 1).State(ctx)
	if gone, ok := errors.AsType[*cudackpt.Error](err); !ok || gone.Result != cudackpt.ResultOperatingSystem || !gone.Gone {
		t.Errorf("state of no process: %#v", err)
	}
}

// If work is in flight, a try fails and changes nothing.
func TestTryLockGivesFalseWhileWorkIsInFlight(t *testing.T) {
	d := openSim(t)
	w := startWork(t, d, "--busy-ms", "2000", "--tick-ms", "0")
	ctx := within(t, patience)
	for {
		began := time.Now()
		locked, err := w.TryLock(ctx, 20*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if !locked {
			if took := time.Since(began); took < 20*time.Millisecond {
				t.Errorf("a try of 20ms took %v", took)
			}
			break
		}
		// The lock came between two kernels.
		if err := w.Unlock(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.wantState(cudackpt.StateRunning)
	if locked, err := w.TryLock(ctx, 0); err != nil {
		t.Fatal(err)
	} else if locked {
		if err := w.Unlock(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Lock(ctx, cudackpt.LockOptions{}); err != nil {
		t.Fatalf("lock that waits for the work: %v", err)
	}
	if err := w.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	w.checkContent()
}

// The driver gives up at the context's deadline, and not only the caller. Otherwise it would
// lock the process when nobody waits any more.
func TestLockGivesUpAtTheDeadline(t *testing.T) {
	d := openSim(t)
	w := startWork(t, d, "--busy-ms", "1500", "--tick-ms", "0")
	for {
		err := w.Lock(within(t, 200*time.Millisecond), cudackpt.LockOptions{})
		if err == nil { // the lock came between two kernels
			if err := w.Unlock(within(t, patience)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
			continue
		}
		if _, late := errors.AsType[*cudackpt.InterruptedError](err); late { // the machine is busy: its answer came after the deadline
			if err := w.Settle(within(t, patience)); err != nil {
				t.Fatal(err)
			}
			if state, err := w.State(within(t, patience)); err != nil {
				t.Fatal(err)
			} else if state == cudackpt.StateLocked {
				if err := w.Unlock(within(t, patience)); err != nil {
					t.Fatal(err)
				}
			}
			continue
		}
		if !errors.Is(err, cudackpt.ResultNotReady) {
			t.Fatalf("lock: %v", err)
		}
		break
	}
	w.wantState(cudackpt.StateRunning)
	w.waitTicks(1)
	w.wantState(cudackpt.StateRunning)
}

func TestGivenUpCallIsWaitedForByTheNext(t *testing.T) {
	d := openSim(t)
	w := startWork(t, d)
	end := faults(t, fmt.Sprintf("lock hang pid %d", w.PID()))

	began := time.Now()
	err := w.Lock(within(t, 300*time.Millisecond), cudackpt.LockOptions{})
	given, ok := errors.AsType[*cudackpt.InterruptedError](err)
	for ok && !given.Started { // the machine is busy: the deadline came first
		began = time.Now()
		err = w.Lock(within(t, 300*time.Millisecond), cudackpt.LockOptions{})
		given, ok = errors.AsType[*cudackpt.InterruptedError](err)
	}
	if !ok || !given.Started || given.PID != w.PID() || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("lock that hangs: %#v", err)
	}
	if took := time.Since(began); took > patience {
		t.Errorf("it returned %v after its deadline of 300ms", took)
	}
	if !strings.Contains(err.Error(), "may still complete in the target") {
		t.Errorf("error is %q", err)
	}

	// The call is still under way, so the next does not start.
	w.waitInTheWay("cuCheckpointProcessLock")
	// Another process is not held up.
	other := startWork(t, d)
	other.wantState(cudackpt.StateRunning)

	// It ends late, and takes effect: the state now says so.
	end()
	if err := w.Settle(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	w.wantState(cudackpt.StateLocked)
	if err := w.Unlock(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	w.waitTicks(2)
	w.checkContent()
}

func TestCanceledCheckpointCompletesInTheTarget(t *testing.T) {
	d := openSim(t)
	w := startWork(t, d)
	end := faults(t, fmt.Sprintf("checkpoint hang pid %d", w.PID()))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	suspended := make(chan error, 1)
	go func() { suspended <- w.Suspend(ctx, cudackpt.LockOptions{Timeout: patience}) }()
	w.waitInTheWay("cuCheckpointProcessCheckpoint")
	cancel()
	err := <-suspended
	given, ok := errors.AsType[*cudackpt.InterruptedError](err)
	if !ok || !given.Started || given.Call != "cuCheckpointProcessCheckpoint" || !errors.Is(err, context.Canceled) {
		t.Fatalf("canceled: %#v", err)
	}
	end()
	// The next call itself waits for it.
	w.wantState(cudackpt.StateCheckpointed)
	if err := w.Resume(within(t, patience), cudackpt.RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
	w.waitTicks(2)
	w.checkContent()
}

func TestFailedSuspendUnlocksAgain(t *testing.T) {
	d := openSim(t)
	w := startWork(t, d, "--managed")
	err := w.Suspend(within(t, patience), cudackpt.LockOptions{Timeout: patience})
	if !errors.Is(err, cudackpt.ResultNotSupported) || !strings.Contains(err.Error(), "managed memory") {
		t.Fatalf("suspend: %v", err)
	}
	w.wantState(cudackpt.StateRunning)
	w.waitTicks(2)
	w.checkContent()
}

func TestDeathDuringCheckpointIsReported(t *testing.T) {
	d := openSim(t)
	w := startWork(t, d)
	faults(t, fmt.Sprintf("checkpoint crash pid %d", w.PID()))
	err := w.Suspend(within(t, patience), cudackpt.LockOptions{Timeout: patience})
	died, ok := errors.AsType[*cudackpt.Error](err)
	if !ok || died.Result != cudackpt.ResultOperatingSystem || !died.Gone || died.Call != "cuCheckpointProcessCheckpoint" {
		t.Errorf("error is %#v", err)
	}
}

func TestToggleGoesBothWays(t *testing.T) {
	d := openSim(t)
	w := startWork(t, d)
	ctx := within(t, patience)
	for _, want := range []cudackpt.State{cudackpt.StateCheckpointed, cudackpt.StateRunning} {
		got, err := w.Toggle(ctx, cudackpt.ToggleOptions{})
		if err != nil || got != want {
			t.Fatalf("toggled to %v, %v, want %v", got, err, want)
		}
		w.wantState(want)
	}
	w.waitTicks(2)

	if err := w.Lock(ctx, cudackpt.LockOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := w.Toggle(ctx, cudackpt.ToggleOptions{})
	if _, ok := errors.AsType[*cudackpt.StateError](err); !ok || got != cudackpt.StateLocked {
		t.Errorf("toggle of a locked process: %v, %v", got, err)
	}
	w.wantState(cudackpt.StateLocked)
	if err := w.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	w.checkContent()
}

func TestWaitForStateSeesWhatAnotherDoes(t *testing.T) {
	d := openSim(t)
	w := startWork(t, d)
	ctx := within(t, patience)

	locked := make(chan error, 1)
	go func() { locked <- w.WaitForState(ctx, cudackpt.StateLocked) }()
	time.Sleep(20 * time.Millisecond)
	if err := openSim(t).Process(w.PID()).Lock(ctx, cudackpt.LockOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-locked; err != nil {
		t.Error(err)
	}
	for state, ask := range map[cudackpt.State]func(context.Context) (bool, error){
		cudackpt.StateRunning:      w.IsRunning,
		cudackpt.StateLocked:       w.IsLocked,
		cudackpt.StateCheckpointed: w.IsCheckpointed,
	} {
		if got, err := ask(ctx); err != nil || got != (state == cudackpt.StateLocked) {
			t.Errorf("asked of a locked process whether it is %v: %v, %v", state, got, err)
		}
	}
	err := w.WaitForState(within(t, 30*time.Millisecond), cudackpt.StateRunning)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait for a state that does not come: %v", err)
	}
}

func TestPairsSwapTwoGPUs(t *testing.T) {
	d := openSim(t)
	gpus, err := d.HostGPUs()
	if err != nil || len(gpus) != simGPUs {
		t.Fatalf("host GPUs are %v, %v", gpus, err)
	}
	w := startWork(t, d, "--gpus", "0,1")
	before := w.waitTicks(1)
	ctx := within(t, patience)
	if err := w.Suspend(ctx, cudackpt.LockOptions{Timeout: patience}); err != nil {
		t.Fatal(err)
	}

	a, b := gpus[0].UUID, gpus[1].UUID
	err = w.Resume(ctx, cudackpt.RestoreOptions{Pairs: []cudackpt.GPUPair{{Old: a, New: b}}})
	if !errors.Is(err, cudackpt.ResultInvalidValue) {
		t.Errorf("map without one of the captured GPUs: %v", err)
	}
	w.wantState(cudackpt.StateCheckpointed)
	if err := w.Resume(ctx, cudackpt.RestoreOptions{Pairs: []cudackpt.GPUPair{{Old: a, New: b}, {Old: b, New: a}}}); err != nil {
		t.Fatal(err)
	}
	after := w.waitTicks(2)
	if len(before.GPUs) != 2 || len(after.GPUs) != 2 ||
		before.GPUs[0].UUID != after.GPUs[1].UUID || before.GPUs[1].UUID != after.GPUs[0].UUID {
		t.Errorf("GPUs before the swap are %v, after it %v", before.GPUs, after.GPUs)
	}
	w.checkContent()
}

func TestVisibleGPUsAreThoseWithADeviceNode(t *testing.T) {
	d := openSim(t)
	w := startWork(t, d)
	host, err := d.HostGPUs()
	if err != nil {
		t.Fatal(err)
	}
	visible, err := d.VisibleGPUs(w.PID())
	if err != nil || len(visible) != simGPUs {
		t.Fatalf("visible are %v, %v", visible, err)
	}
	node := filepath.Join(simRoot(), "dev", fmt.Sprintf("nvidia%d", host[1].Minor))
	if err := os.Rename(node, node+".hidden"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Rename(node+".hidden", node) }()
	visible, err = d.VisibleGPUs(w.PID())
	if err != nil || len(visible) != 1 || visible[0] != host[0] {
		t.Errorf("with one node hidden visible are %v, %v, want %v", visible, err, host[:1])
	}
}

func TestMemoryFollowsTheProcess(t *testing.T) {
	d := openSim(t)
	w := startWork(t, d, "--mib", "16")
	ctx := within(t, patience)
	gpu := w.waitTicks(1).GPUs[0].UUID
	const mib = 1 << 20

	held, err := d.ProcessMemory(ctx, w.PID())
	if err != nil {
		t.Fatal(err)
	}
	if held[gpu] < 16*mib || held[gpu] == cudackpt.UnknownMemory || len(held) != 1 {
		t.Errorf("the process holds %v, want 16 MiB or more of %v alone", held, gpu)
	}
	before, err := d.Memory(ctx, gpu)
	if err != nil || before.Free == 0 || before.Free > before.Total-16*mib {
		t.Errorf("memory is %+v, %v", before, err)
	}
	if err := w.Suspend(ctx, cudackpt.LockOptions{Timeout: patience}); err != nil {
		t.Fatal(err)
	}
	if held, err := d.ProcessMemory(ctx, w.PID()); err != nil || len(held) != 0 {
		t.Errorf("checkpointed, the process holds %v, %v", held, err)
	}
	after, err := d.Memory(ctx, gpu)
	if err != nil || after.Free < before.Free+16*mib {
		t.Errorf("free memory went from %d to %d bytes, %v", before.Free, after.Free, err)
	}
	_, err = d.Memory(ctx, cudackpt.UUID{1})
	if _, ok := errors.AsType[*cudackpt.NVMLError](err); !ok {
		t.Errorf("memory of a GPU that does not exist: %v", err)
	}
	if err := w.Resume(ctx, cudackpt.RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
}

// There are more processes than the first buffer for NVML's answer can hold.
func TestTheMemoryOfAProcessIsFoundAmongMany(t *testing.T) {
	d := openSim(t)
	var last work
	for range 20 {
		last = startWork(t, d, "--tick-ms", "20")
	}
	held, err := d.ProcessMemory(within(t, patience), last.PID())
	if err != nil || len(held) != 1 {
		t.Errorf("the last of many processes holds %v, %v", held, err)
	}
}

func TestTargetOfAnotherLibraryIsNamed(t *testing.T) {
	d := openSim(t)
	copied := t.TempDir()
	library, err := os.ReadFile(d.Library())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(copied, "libcuda.so.1"), library, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LD_LIBRARY_PATH", copied+":"+os.Getenv("LD_LIBRARY_PATH"))
	w := startWork(t, d)
	err = d.CheckLibrary(w.PID())
	mismatch, ok := errors.AsType[*cudackpt.LibraryMismatchError](err)
	if !ok || mismatch.Target != filepath.Join(copied, "libcuda.so.1") || mismatch.Ours != d.Library() {
		t.Errorf("error is %#v", err)
	}
}

func TestTargetOfTheSameLibraryMatches(t *testing.T) {
	d := openSim(t)
	w := startWork(t, d)
	for _, pid := range []int{w.PID(), startPlain(t)} {
		if err := d.CheckLibrary(pid); err != nil {
			t.Error(err)
		}
	}
}
