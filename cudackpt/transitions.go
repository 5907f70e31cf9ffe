package cudackpt

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// rollbackTimeout bounds the Unlock with which Suspend undoes its Lock. It takes
// milliseconds unless the target's restore thread has been stopped meanwhile.
const rollbackTimeout = 10 * time.Second

// Suspend takes a process from running to checkpointed: Lock, Checkpoint. If the
// checkpoint fails the process is unlocked again, also when ctx has ended. The one
// thing that cannot be undone is a call that was given up while under way: the
// error is then an [*InterruptedError] with Started set, the process may yet
// become locked or checkpointed, and what to do about it (Settle, State, then
// Unlock or Resume) is the caller's to decide.
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

// Resume takes a process from checkpointed to running: Restore, Unlock. If the
// restore fails the process is checkpointed as before (but see Restore on out of
// memory); if the unlock fails it is locked, and Unlock may be tried again.
func (p Process) Resume(ctx context.Context, opts RestoreOptions) error {
	if err := p.Restore(ctx, opts); err != nil {
		return err
	}
	if err := p.Unlock(ctx); err != nil {
		return fmt.Errorf("process %d has its GPU memory back but is still locked: %w", p.pid, err)
	}
	return nil
}

// ToggleOptions are the options of whichever way Toggle goes.
type ToggleOptions struct {
	Lock    LockOptions
	Restore RestoreOptions
}

// Toggle suspends a running process and resumes a checkpointed one, and returns
// the state that it is in then. From every other state it fails with a
// [*StateError] and changes nothing. After an error the state returned is the one
// that the process was found in.
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
		return state, &StateError{Op: "toggle", PID: p.pid, State: state, Hint: "someone is at work on it, or left it so: unlock it first"}
	}
	return state, &StateError{Op: "toggle", PID: p.pid, State: state, Hint: "only a running or a checkpointed process can be toggled"}
}

// The pauses between two looks at a state: each is twice the one before.
const (
	firstPause = time.Millisecond
	lastPause  = 100 * time.Millisecond
)

// WaitForState waits until the process is in the state want: someone else takes it
// there. It fails when the process ends or fails, as a failed process never leaves
// that state. The driver signals no changes, so this is a poll: a state that lasts
// less than a tenth of a second may be missed.
func (p Process) WaitForState(ctx context.Context, want State) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		state, err := p.State(ctx)
		if err != nil {
			return fmt.Errorf("wait for process %d to be %v: %w", p.pid, want, err)
		}
		if state == want {
			return nil
		}
		if state == StateFailed {
			return &StateError{Op: "wait for " + want.String(), PID: p.pid, State: state, Hint: "it cannot be checkpointed or restored any more: restart it, from an image if there is one"}
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for process %d to be %v: it is %v: %w", p.pid, want, state, ctx.Err())
		}
	}
}

// IsRunning says whether the process is in StateRunning.
func (p Process) IsRunning(ctx context.Context) (bool, error) { return p.is(ctx, StateRunning) }

// IsLocked says whether the process is in StateLocked.
func (p Process) IsLocked(ctx context.Context) (bool, error) { return p.is(ctx, StateLocked) }

// IsCheckpointed says whether the process is in StateCheckpointed.
func (p Process) IsCheckpointed(ctx context.Context) (bool, error) {
	return p.is(ctx, StateCheckpointed)
}

func (p Process) is(ctx context.Context, want State) (bool, error) {
	state, err := p.State(ctx)
	return err == nil && state == want, err
}
