package hooks

import (
	"context"
	"errors"
	"fmt"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
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
	err := d.take(ctx, pids)
	if err == nil {
		err = d.requireRunning(ctx)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w; none is locked", err)
		}
		return preflight.AsRefusal(err)
	}
	if err := d.lockTargets(ctx); err != nil {
		if undoErr := d.unlockAll(context.Background(), h.Config.Restore.Timeout); undoErr != nil {
			return errors.Join(preflight.AsFailure(err), fmt.Errorf("%w, cucriu unlock tries again: %w", ErrNotBack, undoErr))
		}
		return preflight.AsFailure(fmt.Errorf("%w; none is locked", err))
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
		return fmt.Errorf("process %d (%s) is %v, not locked: %s", t.PID, t.member.Name, state, preflight.StateRemedy(t.PID, state))
	})
	if err != nil {
		return preflight.AsRefusal(err)
	}
	// It is not given up half way. After an error they are locked as before.
	return d.unlockAll(context.WithoutCancel(ctx), h.Config.Lock.Timeout)
}

// sessionOfProcess finds the open session that a process is in, nil if there is none.
func sessionOfProcess(runDir string, pid int) (*journal.Session, error) {
	findings, err := preflight.ProcessFindings(pid)
	if err != nil {
		return nil, err
	}
	if len(findings) > 0 && findings[0].Name != preflight.FindingZombie { // the session of a zombie may have others
		f := findings[0]
		return nil, fmt.Errorf("%s %s: %s", f.Subject(), f.Message, f.Remedy)
	}
	id, err := proc.IdentOf(pid)
	if err != nil {
		return nil, err
	}
	return journal.FindOpen(runDir, id, []journal.Member{{Process: preflight.Process{Ident: id}}})
}
