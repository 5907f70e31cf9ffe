package hooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cucriu/criuutil/inject"
	"cucriu/criuutil/proc"
	"cucriu/cudackpt"
	"cucriu/hooks/journal"
	"cucriu/hooks/preflight"
)

// The operators' commands name processes, where criu's stages name a tree: what
// is below the processes is left alone.

// Lock locks processes as a dump does: all of them or none, within
// lock.timeout. Nothing is journaled, and who locks unlocks. After an error none is
// locked, unless it wraps [ErrNotBack].
func (h *Hook) Lock(ctx context.Context, pids []int) error {
	h = h.filled()
	d := &dump{Hook: h}
	defer d.letGo()
	if err := d.take(ctx, pids); err != nil {
		return preflight.AsRefusal(err)
	}
	if err := d.requireRunning(ctx); err != nil {
		return preflight.AsRefusal(err)
	}
	if err := d.lock(ctx); err != nil {
		if undoErr := d.unlockAll(context.Background(), h.Config.Restore.Timeout); undoErr != nil {
			return errors.Join(preflight.AsFailure(err), fmt.Errorf("%w, cucriu unlock tries again: %w", ErrNotBack, undoErr))
		}
		return preflight.AsFailure(err)
	}
	return nil
}

// unlockAll unlocks what is locked, by this program or not. A session that has
// got as far as its locks is brought up by unlocking.
func (d *dump) unlockAll(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if d.tracer != nil {
		if err := d.tracer.Release(ctx); err != nil {
			return err
		}
	}
	return d.bringUp(ctx, d.driver, d.Hook.session(&journal.Session{Record: journal.Record{Kind: journal.KindSuspend, Step: journal.StepLock, Members: d.members}}), d.targets)
}

// Unlock unlocks processes. One that runs is left as it is, and one that was
// stopped stays stopped.
func (h *Hook) Unlock(ctx context.Context, pids []int) error {
	h = h.filled()
	d := &dump{Hook: h}
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
	return d.unlockAll(ctx, h.Config.Lock.Timeout)
}

// take takes hold of processes that nobody else is at work on.
func (d *dump) take(ctx context.Context, pids []int) error {
	ctx, cancel := context.WithTimeout(ctx, d.Hook.patience(pids...))
	defer cancel()
	pids = slices.Compact(slices.Sorted(slices.Values(pids)))
	for _, pid := range pids {
		other, err := sessionOfProcess(d.Config.RunDir, pid)
		if err != nil || other != nil {
			return errors.Join(err, other.Conflict())
		}
	}
	for _, pid := range pids {
		process, err := d.inspectNamed(ctx, pid)
		if err != nil {
			return err
		}
		d.members = append(d.members, journal.Member{Process: *process})
	}
	var err error
	if d.targets, err = openMembers(d.driver, d.members); err != nil {
		return err
	}
	if len(d.targets) != len(d.members) {
		return errors.New("a process ended while it was inspected")
	}
	return nil
}

// inspectNamed inspects a process that must have CUDA and be reachable.
func (d *dump) inspectNamed(ctx context.Context, pid int) (*preflight.Process, error) {
	frozen, err := proc.FrozenBy(pid)
	if err != nil {
		return nil, err
	}
	if len(frozen) > 0 {
		return nil, fmt.Errorf("process %d is frozen by control group %s, and the driver cannot reach it: thaw it first", pid, frozen[0].Dir)
	}
	if parked, err := inject.LooksParked(pid); err != nil || parked {
		if err == nil {
			err = fmt.Errorf("process %d was suspended, or half dumped, and what its threads need to go on is not in this run directory (%s): name the one of its suspend with CUCRIU_RUN_DIR; if that is gone, end the process", pid, d.Config.RunDir)
		}
		return nil, err
	}
	seen, err := preflight.InspectProcess(ctx, pid, d.open)
	if err == nil {
		err = seen.Findings.Err()
	}
	if err == nil && seen.Process == nil {
		err = fmt.Errorf("process %d uses no CUDA: it is not one for this command", pid)
	}
	return seen.Process, err
}

// sessionOfProcess finds the open session that a process is in.
func sessionOfProcess(runDir string, pid int) (*journal.Session, error) {
	process, err := proc.Open(pid)
	if err != nil {
		return nil, err
	}
	defer process.Close()
	return journal.Of(runDir, process.Ident, []journal.Member{{Process: preflight.Process{Ident: process.Ident}}})
}

// requireRunning refuses processes that do not run, within lock.timeout.
func (d *dump) requireRunning(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.patience())
	defer cancel()
	return statesOf(ctx, d.targets, wantRunning)
}
