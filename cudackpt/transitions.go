package cudackpt

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// rollbackTimeout limits the Unlock with which Suspend undoes its Lock. That takes
// milliseconds, unless the target's restore thread has been stopped in the meantime.
const rollbackTimeout = 10 * time.Second

// Suspend takes a process from running to checkpointed: Lock, then Checkpoint. If the
// checkpoint fails, Suspend unlocks the process again, even if ctx has ended. It cannot undo a
// call that was given up while under way. The error is then an [*InterruptedError] with Started
// set, and the process may yet become locked or checkpointed. The caller decides what to do
// about it: Settle, State, then Unlock or Resume.
func (p Process) Suspend(ctx context.Context, opts LockOptions) error {
	if err := p.Lock(ctx, opts); err != nil {
		return err
	}
	err := p.Checkpoint(ctx)
	if err == nil {
		return nil
	}
	if interrupted, ok := errors.AsType[*InterruptedError](err); ok && interrupted.Started {
		return err
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	if undoErr := p.Unlock(undo); undoErr != nil {
		return errors.Join(err, fmt.Errorf("process %d may have stayed locked: %w", p.pid, undoErr))
	}
	return err
}

// Resume takes a process from checkpointed to running: Restore, then Unlock. If the restore
// fails, the process is checkpointed as before, unless it ran out of memory (see
// [Process.Restore]). If the unlock fails, the process is locked, and Unlock may be tried
// again.
func (p Process) Resume(ctx context.Context, opts RestoreOptions) error {
	if err := p.Restore(ctx, opts); err != nil {
		return err
	}
	if err := p.Unlock(ctx); err != nil {
		return fmt.Errorf("the GPU memory of process %d is restored, but it is still locked: %w", p.pid, err)
	}
	return nil
}

// ToggleOptions are the options for both directions of [Process.Toggle].
type ToggleOptions struct {
	Lock    LockOptions
	Restore RestoreOptions
}

// Toggle suspends a running process or resumes a checkpointed one, and returns the new state.
// In every other state it fails with a [*StateError] and changes nothing. After an error it
// returns the state in which it found the process.
func (p Process) Toggle(ctx context.Context, opts ToggleOptions) (State, error) {
	state, err := p.State(ctx)
	if err != nil {
		return 0, err
	}
	switch state {
	case StateRunning:
		if err := p.Suspend(ctx, opts.Lock); err != nil {
			return state, err
		}
		return StateCheckpointed, nil
	case StateCheckpointed:
		if err := p.Resume(ctx, opts.Restore); err != nil {
			return state, err
		}
		return StateRunning, nil
	case StateLocked:
		return state, &StateError{Op: "toggle", PID: p.pid, State: state, Hint: "another tool is working on it, or left it locked: unlock it first"}
	}
	return state, &StateError{Op: "toggle", PID: p.pid, State: state, Hint: "only a running or a checkpointed process can be toggled"}
}

// The pauses between two looks at a state. Each is twice as long as the one before.
const (
	firstPause = time.Millisecond
	lastPause  = 100 * time.Millisecond
)

// WaitForState waits until another program has taken the process to the state want. It fails if
// the process ends, or if its state is StateFailed, which it can never leave. The driver does
// not signal changes, so WaitForState polls: it may miss a state that lasts less than a tenth
// of a second.
func (p Process) WaitForState(ctx context.Context, want State) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		state, err := p.State(ctx)
		if err != nil {
			return fmt.Errorf("wait for process %d to be %v: %w", p.pid, want, err)
		}
		if state == want {
			return nil
		}
		if state == StateFailed {
			return &StateError{Op: "wait for " + want.String(), PID: p.pid, State: state, Hint: "it can no longer be checkpointed or restored: restart it, from an image if there is one"}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("wait for process %d to be %v: it is %v: %w", p.pid, want, state, ctx.Err())
		}
	}
}

// IsRunning reports whether the process is in StateRunning.
func (p Process) IsRunning(ctx context.Context) (bool, error) { return p.hasState(ctx, StateRunning) }

// IsLocked reports whether the process is in StateLocked.
func (p Process) IsLocked(ctx context.Context) (bool, error) { return p.hasState(ctx, StateLocked) }

// IsCheckpointed reports whether the process is in StateCheckpointed.
func (p Process) IsCheckpointed(ctx context.Context) (bool, error) {
	return p.hasState(ctx, StateCheckpointed)
}

func (p Process) hasState(ctx context.Context, want State) (bool, error) {
	state, err := p.State(ctx)
	return err == nil && state == want, err
}
