package cudackpt

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"
)

// Process is a CUDA process seen from a controller. It is a cheap value: making
// one asks the driver nothing, and it holds nothing that must be released. The
// pid is one in the pid namespace of the calling program.
//
// All methods that take a context return at once when it ends, with an
// [*InterruptedError]. The driver call itself cannot be interrupted: it may still
// complete in the target, and later calls to the same process wait for it, each
// within its own context.
//
// The driver works through one thread of the target. While that thread is stopped
// or frozen, every call but RestoreThreadID blocks.
type Process struct {
	driver *Driver
	pid    int
}

// Process returns the process with this pid. Nothing is checked until it is used.
func (d *Driver) Process(pid int) Process { return Process{driver: d, pid: pid} }

// Self returns the calling process.
func (d *Driver) Self() Process { return d.Process(os.Getpid()) }

// PID returns the process's id.
func (p Process) PID() int { return p.pid }

// State asks in which state the process is. ResultNotInitialized means that it
// has no CUDA; anything else is a failure to find out. It can answer
// "running" for a coordinator process that has no restore thread, so
// RestoreThreadID is the better test for whether a process has CUDA.
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

// RestoreThreadID asks for the id of the thread through which the driver works in
// the target. It gives ResultNotInitialized for a process without CUDA. The driver
// answers it without the target: at once, for one that is stopped too, and while
// another call to it is under way.
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
	// Timeout is how long the driver may wait for GPU work in flight, in steps of
	// a millisecond, rounded up. 0 waits for as long as the context lives, for
	// ever if it has no deadline. The context's deadline bounds it in any case, so
	// that the driver gives up by itself when the caller does.
	Timeout time.Duration
}

// Lock takes a process from running to locked: calls that submit GPU work block
// from then on, and work in flight has ended. When the work does not end within
// the timeout the error is ResultNotReady, and the process is running as before.
// Calls that only wait for the GPU are not held back by the lock.
func (p Process) Lock(ctx context.Context, opts LockOptions) error {
	if err := checkTimeout(opts.Timeout); err != nil {
		return err
	}
	return p.call(ctx, callLock, func(pid int32) Result {
		// Only now is it known how much of the context's time is left.
		return p.driver.api.rawLock(pid, lockMillis(ctx, opts.Timeout))
	})
}

// TryLock is a Lock that gives false, and no error, when GPU work was still in
// flight after timeout. A timeout of 0 is the shortest there is, a millisecond.
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

// Checkpoint takes a process from locked to checkpointed: the content of its GPU
// memory is copied to host memory of the process, whose resident set grows by as
// much, and its GPUs are released. A thread of the target that synchronizes with
// the GPU from now until Unlock dies with SIGSEGV, so stop the target's threads
// (all but the restore thread) first. After an error the process is still locked.
func (p Process) Checkpoint(ctx context.Context) error {
	return p.call(ctx, callCheckpoint, p.driver.api.rawCheckpoint)
}

// GPUPair says that what was on GPU Old goes to GPU New.
type GPUPair struct {
	Old UUID `json:"old"` // a GPU that the process could see when it was checkpointed
	New UUID `json:"new"` // a GPU that it can see now
}

// RestoreOptions are the options of Restore.
type RestoreOptions struct {
	// Pairs is the GPU map. With none the driver takes the GPUs that the process
	// can see in their order. If there are any, their old side must be exactly the
	// GPUs that the process could see when it was checkpointed, used or not, and
	// no GPU may occur twice on a side. Needs FeatureGPUPairs.
	Pairs []GPUPair
}

// Restore takes a process from checkpointed to locked, on the GPUs that it can
// see now. A map that is refused (ResultInvalidValue) and missing GPUs
// (ResultNotSupported) leave it checkpointed, and a right map then succeeds. Out
// of memory does not: from then on the process cannot be restored any more, so
// compare Memory with what is needed before.
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

// Settle waits until no driver call to the process is under way: after an
// [*InterruptedError] with Started set, until the call that was given up has
// returned. Calls made by other programs are not seen.
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

// check refuses a call that could not be made.
func (p Process) check(name string) error {
	if err := p.driver.Supports(FeatureCheckpoint); err != nil {
		return err
	}
	if p.pid <= 0 || p.pid > math.MaxInt32 {
		return fmt.Errorf("%w: %s: %d is not the id of a process", ErrInvalidArgument, name, p.pid)
	}
	return nil
}

// callError turns the result of a call on pid into an error.
func callError(name string, pid int, result Result) error {
	if result == ResultSuccess {
		return nil
	}
	return &Error{Call: name, PID: pid, Result: result, Gone: result == ResultOperatingSystem && gone(pid)}
}

// checkTimeout refuses what the driver's argument, 32 bits of milliseconds, cannot
// say.
func checkTimeout(timeout time.Duration) error {
	if timeout < 0 {
		return fmt.Errorf("%w: the lock timeout %v is negative", ErrInvalidArgument, timeout)
	}
	if roundUpMillis(timeout) > math.MaxUint32 {
		return fmt.Errorf("%w: the lock timeout %v is longer than the driver can count (%v)", ErrInvalidArgument, timeout, math.MaxUint32*time.Millisecond)
	}
	return nil
}

// roundUpMillis rounds up, because 0 would mean for ever.
func roundUpMillis(timeout time.Duration) int64 {
	millis := int64(timeout / time.Millisecond)
	if timeout%time.Millisecond > 0 {
		millis++
	}
	return millis
}

// lockMargin is how much earlier than the context's deadline the driver is told to
// give up: "not ready, still running" is worth more to a caller than a call whose
// outcome is open.
const lockMargin = 20 * time.Millisecond

// lockMillis is the timeout that the driver is given: timeout, or what is left to
// ctx if that is less. A lock that outlived its caller would take hold of the
// target when nobody is left to let it go.
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

// checkPairs refuses a map that no driver accepts, and any map if this driver
// knows none.
func (d *Driver) checkPairs(pairs []GPUPair) ([]gpuPair, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	if err := d.Supports(FeatureGPUPairs); err != nil {
		return nil, err
	}
	raw := make([]gpuPair, 0, len(pairs))
	olds, news := make(map[UUID]bool), make(map[UUID]bool)
	for i, pair := range pairs {
		switch {
		case pair.Old.IsZero() || pair.New.IsZero():
			return nil, fmt.Errorf("%w: GPU pair %d (%v to %v) names no GPU on one side", ErrInvalidArgument, i, pair.Old, pair.New)
		case olds[pair.Old]:
			return nil, fmt.Errorf("%w: GPU pair %d: %v was paired before: each captured GPU goes to one GPU", ErrInvalidArgument, i, pair.Old)
		case news[pair.New]:
			return nil, fmt.Errorf("%w: GPU pair %d: %v was paired before: two captured GPUs cannot share one", ErrInvalidArgument, i, pair.New)
		}
		olds[pair.Old], news[pair.New] = true, true
		raw = append(raw, gpuPair{oldUUID: pair.Old, newUUID: pair.New})
	}
	return raw, nil
}
