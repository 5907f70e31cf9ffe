package hooks

import (
	"context"
	"errors"
	"fmt"

	"cucriu/criuutil/proc"
	"cucriu/cudackpt"
	"cucriu/hooks/journal"
	"cucriu/hooks/preflight"
)

// The operators' commands name processes, while criu's stages name a tree. The commands
// leave the children of these processes alone.

// Lock locks processes as a dump does: all of them or none, within lock.timeout. It writes
// no journal: whoever locks must unlock. After an error none is locked, unless the error
// wraps [ErrNotBack].
func (h *Hook) Lock(ctx context.Context, pids []int) error {
	h = h.Filled()
	d := &suspension{Hook: h}
	defer d.letGo()
	if err := d.take(ctx, pids); err != nil {
		return preflight.AsRefusal(err)
	}
	if err := d.requireRunning(ctx); err != nil {
		return preflight.AsRefusal(err)
	}
	if err := d.lockTargets(ctx); err != nil {
		if undoErr := d.unlockAll(context.Background(), h.Config.Restore.Timeout); undoErr != nil {
			return errors.Join(preflight.AsFailure(err), fmt.Errorf("%w, cucriu unlock tries again: %w", ErrNotBack, undoErr))
		}
		return preflight.AsFailure(err)
	}
	return nil
}

// Unlock unlocks processes. One that runs is left as it is, and one that was
// stopped stays stopped.
func (h *Hook) Unlock(ctx context.Context, pids []int) error {
	h = h.Filled()
	d := &suspension{Hook: h}
	defer d.letGo()
	if err := d.take(ctx, pids); err != nil {
		return preflight.AsRefusal(err)
	}
	asking, cancel := context.WithTimeout(ctx, h.Config.Lock.Timeout)
	defer cancel()
	// A process that is checkpointed must not run, not even under trace.
	err := statesOf(asking, d.targets, func(t *target, state cudackpt.State) error {
		if state == cudackpt.StateRunning || state == cudackpt.StateLocked {
			return nil
		}
		return fmt.Errorf("process %d (%s) is %v, not locked: cucriu resume -p %d restores it", t.PID, t.member.Name, state, t.PID)
	})
	if err != nil {
		return preflight.AsRefusal(err)
	}
	return d.unlockAll(ctx, h.Config.Lock.Timeout) // after an error they are locked as before
}

// sessionOfProcess finds the open session that a process is in, nil if there is none.
func sessionOfProcess(runDir string, pid int) (*journal.Session, error) {
	id, err := proc.IdentOf(pid)
	if err != nil {
		return nil, err
	}
	return journal.FindOpen(runDir, id, []journal.Member{{Process: preflight.Process{Ident: id}}})
}
