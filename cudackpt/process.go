package cudackpt

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"
)

// Process is a CUDA process as a controller sees it. It is a cheap value: making one does not
// ask the driver, and it holds nothing that must be released. The pid is one in the pid
// namespace of the calling program.
//
// All methods that take a context return at once when it ends, with an [*InterruptedError]. The
// driver call itself cannot be interrupted: it may still complete in the target. Later calls to
// the same process wait for it, each within its own context.
//
// The driver works through one thread of the target. While that thread is stopped or frozen,
// every call except RestoreThreadID blocks.
type Process struct {
	driver *Driver
	pid    int
}

// Process returns the process with this pid. Nothing is checked until the value is used.
func (d *Driver) Process(pid int) Process { return Process{driver: d, pid: pid} }

// Self returns the calling process.
func (d *Driver) Self() Process { return d.Process(os.Getpid()) }

// PID returns the process's id.
func (p Process) PID() int { return p.pid }

// State returns the state that the process is in. The error ResultNotInitialized means that the
// process has no CUDA; any other error means that the state is not known. State can be
// StateRunning for a coordinator process that has no restore thread, so RestoreThreadID is the
// better test for whether a process has CUDA.
func (p Process) State(ctx context.Context) (State, error) {
	var state uint32
	err := p.call(ctx, callGetState, func(pid int32) (r Result) {
		state, r = p.driver.api.rawGetState(pid)
		return r
	})
	if err != nil {
		return 0, err
	}
	return State(state), nil
}

// RestoreThreadID returns the id of the thread through which the driver works in the target.
// For a process without CUDA the error is ResultNotInitialized. The driver does not need the
// target to answer: it answers at once, even if the target is stopped, or if another call to it
// is under way.
func (p Process) RestoreThreadID(ctx context.Context) (int, error) {
	if err := p.check(callGetRestoreThreadID); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, &InterruptedError{Call: callGetRestoreThreadID, PID: p.pid, Err: err}
	}
	tid, result := p.driver.api.rawGetRestoreThreadID(int32(p.pid))
	if err := callError(callGetRestoreThreadID, p.pid, result); err != nil {
		return 0, err
	}
	return int(tid), nil
}

// LockOptions are the options of Lock.
type LockOptions struct {
	// Timeout is how long the driver may wait for GPU work in flight, rounded up to whole
	// milliseconds. With 0 it waits until the context's deadline, or forever if there is none.
	// The context's deadline limits the wait in any case, so that the driver gives up when the
	// caller does.
	Timeout time.Duration
}

// Lock takes a process from running to locked. From then on calls that submit GPU work block,
// and work in flight has ended. If the work does not end within the timeout, the error is
// ResultNotReady, and the process runs as before. The lock does not hold back calls that only
// wait for the GPU.
func (p Process) Lock(ctx context.Context, opts LockOptions) error {
	if err := checkTimeout(opts.Timeout); err != nil {
		return err
	}
	return p.call(ctx, callLock, func(pid int32) Result {
		// The time that the context has left is known only now.
		return p.driver.api.rawLock(pid, lockMillis(ctx, opts.Timeout))
	})
}

// TryLock is [Process.Lock], except that it returns false and no error if GPU work was still in
// flight after timeout. A timeout of 0 stands for the shortest one, a millisecond.
func (p Process) TryLock(ctx context.Context, timeout time.Duration) (bool, error) {
	if timeout == 0 {
		timeout = time.Millisecond
	}
	err := p.Lock(ctx, LockOptions{Timeout: timeout})
	if errors.Is(err, ResultNotReady) {
		return false, nil
	}
	return err == nil, err
}

// Checkpoint takes a process from locked to checkpointed. The driver copies the content of its
// GPU memory to host memory of the process, whose resident set grows by as much, and releases
// its GPUs. From now until Unlock, a thread of the target that synchronizes with the GPU dies
// with SIGSEGV. So stop the target's threads first, all but the restore thread. After an error
// the process is still locked.
func (p Process) Checkpoint(ctx context.Context) error {
	return p.call(ctx, callCheckpoint, p.driver.api.rawCheckpoint)
}

// GPUPair says that the content of GPU Old goes to GPU New.
type GPUPair struct {
	Old UUID `json:"old"` // a GPU that the process could see when it was checkpointed
	New UUID `json:"new"` // a GPU that it can see now
}

// RestoreOptions are the options of Restore.
type RestoreOptions struct {
	// Pairs is the GPU map. Without pairs the driver takes the GPUs that the process can see,
	// in their order. With pairs, the old sides must be exactly the GPUs that the process could
	// see when it was checkpointed, used or not, and no GPU may occur twice on a side. Pairs
	// need FeatureGPUPairs.
	Pairs []GPUPair
}

// Restore takes a process from checkpointed to locked, on the GPUs that it can see now. If a
// map is refused (ResultInvalidValue) or GPUs are missing (ResultNotSupported), the process
// stays checkpointed, and a correct map then succeeds. That is not so after a restore that ran
// out of memory: the process can never be restored again. So compare [Driver.Memory] with what
// is needed before.
//
// No GPU interrupts the kernels of a restored process (measured on driver 580.159.04). Other
// processes wait for their end, and if that takes some 4.5 s, the kernel module ends all GPU work
// of the restored process (Xid 109, CUDA error 719).
func (p Process) Restore(ctx context.Context, opts RestoreOptions) error {
	pairs, err := p.driver.checkPairs(opts.Pairs)
	if err != nil {
		return err
	}
	return p.call(ctx, callRestore, func(pid int32) Result {
		return p.driver.api.rawRestore(pid, pairs)
	})
}

// Unlock takes a process from locked to running.
func (p Process) Unlock(ctx context.Context) error {
	return p.call(ctx, callUnlock, p.driver.api.rawUnlock)
}

// Settle waits until no driver call to the process is under way. After an [*InterruptedError]
// with Started set, that is when the call that was given up has returned. Settle does not see
// calls that other programs make.
func (p Process) Settle(ctx context.Context) error {
	return p.driver.turns.do(ctx, "settle", p.pid, func() error { return nil })
}

// call makes one driver call on the process.
func (p Process) call(ctx context.Context, name string, raw func(pid int32) Result) error {
	if err := p.check(name); err != nil {
		return err
	}
	return p.driver.turns.do(ctx, name, p.pid, func() error {
		return callError(name, p.pid, raw(int32(p.pid)))
	})
}

// check refuses a call that cannot be made.
func (p Process) check(name string) error {
	if err := p.driver.Supports(FeatureCheckpoint); err != nil {
		return err
	}
	if p.pid <= 0 || p.pid > math.MaxInt32 {
		return fmt.Errorf("%w: %s: %d is not a process ID", ErrInvalidArgument, name, p.pid)
	}
	return nil
}

// callError turns the result of a call on pid into an error.
func callError(name string, pid int, result Result) error {
	if result == ResultSuccess {
		return nil
	}
	return &Error{Call: name, PID: pid, Result: result, Gone: (result == ResultOperatingSystem || result == ResultNotInitialized) && gone(pid)}
}

// checkTimeout refuses a timeout that does not fit the driver's argument, 32 bits of
// milliseconds.
func checkTimeout(timeout time.Duration) error {
	if timeout < 0 {
		return fmt.Errorf("%w: the lock timeout %v is negative", ErrInvalidArgument, timeout)
	}
	if roundUpMillis(timeout) > math.MaxUint32 {
		return fmt.Errorf("%w: the lock timeout %v is longer than the driver's maximum (%v)", ErrInvalidArgument, timeout, math.MaxUint32*time.Millisecond)
	}
	return nil
}

// roundUpMillis rounds up, because 0 would mean to wait forever.
func roundUpMillis(timeout time.Duration) int64 {
	millis := int64(timeout / time.Millisecond)
	if timeout%time.Millisecond > 0 {
		millis++
	}
	return millis
}

// lockMargin is how long before the context's deadline the driver is told to give up. The
// answer "not ready, still running" is worth more to a caller than a call whose outcome is
// open.
const lockMargin = 20 * time.Millisecond

// lockMillis returns the timeout that the driver is given: timeout, or less if ctx ends
// earlier. A lock that outlived its caller would take hold of the target when nobody is left to
// release it.
func lockMillis(ctx context.Context, timeout time.Duration) uint32 {
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		left = max(left-min(left/2, lockMargin), time.Millisecond)
		if timeout == 0 || left < timeout {
			timeout = left
		}
	}
	return uint32(min(roundUpMillis(timeout), math.MaxUint32))
}

// checkPairs refuses a map that no driver accepts, and any map if this driver does not know
// pairs.
func (d *Driver) checkPairs(pairs []GPUPair) ([]cGPUPair, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	if err := d.Supports(FeatureGPUPairs); err != nil {
		return nil, err
	}
	raw := make([]cGPUPair, 0, len(pairs))
	olds, news := make(map[UUID]bool), make(map[UUID]bool)
	for i, pair := range pairs {
		switch {
		case pair.Old.IsZero() || pair.New.IsZero():
			return nil, fmt.Errorf("%w: GPU pair %d (%v to %v) is missing a GPU on one side", ErrInvalidArgument, i, pair.Old, pair.New)
		case olds[pair.Old]:
			return nil, fmt.Errorf("%w: GPU pair %d: %v is already the source of another pair", ErrInvalidArgument, i, pair.Old)
		case news[pair.New]:
			return nil, fmt.Errorf("%w: GPU pair %d: %v is already paired: two captured GPUs cannot map to the same one", ErrInvalidArgument, i, pair.New)
		}
		olds[pair.Old], news[pair.New] = true, true
		raw = append(raw, cGPUPair{oldUUID: pair.Old, newUUID: pair.New})
	}
	return raw, nil
}
