package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cucriu/cudackpt"
	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/engine"
	"cucriu/internal/inject"
	"cucriu/internal/inspect"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
	"cucriu/internal/session"
)

// The operators' commands name processes, while criu's stages name a tree. The commands leave the
// children of these processes alone.

// Lock locks processes as a dump does: all of them or none, within lock.timeout. It writes no journal:
// whoever locks must unlock. After an error none is locked, unless it wraps [hooks.ErrNotBack].
func Lock(ctx context.Context, hook *hooks.Hook, pids []int) error {
	hook = hook.Filled()
	d := &engine.Suspension{Env: hook}
	defer d.LetGo()
	err := take(ctx, d, pids)
	if err == nil {
		err = requireRunning(ctx, d)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w; none is locked", err)
		}
		return preflight.AsRefusal(err)
	}
	if err := d.Lock(ctx); err != nil {
		if undoErr := d.UnlockAll(context.Background(), hook.Config.Restore.Timeout); undoErr != nil {
			return errors.Join(preflight.AsFailure(err), fmt.Errorf("%w, cucriu unlock tries again: %w", hooks.ErrNotBack, undoErr))
		}
		return preflight.AsFailure(fmt.Errorf("%w; none is locked", err))
	}
	return nil
}

// Unlock unlocks processes. One that runs is left as it is, and one that was stopped stays stopped.
func Unlock(ctx context.Context, hook *hooks.Hook, pids []int) error {
	hook = hook.Filled()
	d := &engine.Suspension{Env: hook}
	defer d.LetGo()
	if err := take(ctx, d, pids); err != nil {
		return preflight.AsRefusal(err)
	}
	asking, cancel := context.WithTimeout(ctx, hook.Config.Lock.Timeout)
	defer cancel()
	// A process that is checkpointed must not run, not even under trace.
	err := engine.StatesOf(asking, d.Targets, func(t *engine.Target, state cudackpt.State) error {
		if state == cudackpt.StateRunning || state == cudackpt.StateLocked {
			return nil
		}
		return fmt.Errorf("process %d (%s) is %v, not locked: %s", t.PID, t.Member.Name, state, inspect.StateRemedy(t.PID, state))
	})
	if err != nil {
		return preflight.AsRefusal(err)
	}
	// It is not given up half way. After an error they are locked as before.
	return d.UnlockAll(context.WithoutCancel(ctx), hook.Config.Lock.Timeout)
}

// sessionOfProcess finds the open session that a process is in, nil if there is none.
func sessionOfProcess(runDir string, pid int) (*journal.Session, error) {
	findings, err := inspect.ProcessFindings(pid)
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
	return journal.FindOpen(runDir, id, []journal.Member{{Process: inspect.Process{Ident: id}}})
}

// take takes hold of processes. It fails if somebody else is at work on one of them.
func take(ctx context.Context, s *engine.Suspension, pids []int) error {
	ctx, cancel := context.WithTimeout(ctx, s.Patience(pids...))
	defer cancel()
	pids = slices.Compact(slices.Sorted(slices.Values(pids)))
	for _, pid := range pids {
		other, err := sessionOfProcess(s.Config.RunDir, pid)
		if err != nil || other != nil {
			return errors.Join(err, other.Conflict())
		}
	}
	for _, pid := range pids {
		process, err := inspectNamed(ctx, s, pid)
		if err != nil {
			return err
		}
		s.Members = append(s.Members, journal.Member{Process: *process})
	}
	var err error
	if s.Targets, err = engine.OpenMembers(s.Driver, s.Members); err != nil {
		return err
	}
	if len(s.Targets) != len(s.Members) {
		return errors.New("a process ended while it was inspected")
	}
	return nil
}

// inspectNamed inspects a process that must have CUDA and be reachable.
func inspectNamed(ctx context.Context, s *engine.Suspension, pid int) (*inspect.Process, error) {
	frozen, err := proc.FrozenBy(pid)
	if err != nil {
		return nil, err
	}
	if len(frozen) > 0 {
		return nil, fmt.Errorf("process %d is frozen by control group %s, and the driver cannot reach it: thaw it first", pid, frozen[0].Dir)
	}
	if parked, err := inject.LooksParked(pid); err != nil || parked {
		if err == nil {
			err = fmt.Errorf("process %d was suspended, half dumped, or restored by a criu without cucriu-hook, and what its threads need to go on is not in this run directory (%s): name the one of its suspend with CUCRIU_RUN_DIR; "+
				"if it was restored, end it, and restore the image with cucriu restore, or with cucriu-hook as criu's action script", pid, s.Config.RunDir)
		}
		return nil, err
	}
	seen, err := inspect.One(ctx, pid, s.LoadDriver)
	if err == nil {
		err = seen.Findings.Err()
	}
	if err == nil && seen.Holder != nil {
		err = fmt.Errorf("process %d (%s) holds GPU devices and has no CUDA state, as a child that was forked from a CUDA process: name the CUDA process itself (cucriu status lists them)", pid, seen.Name)
	} else if err == nil && seen.Process == nil {
		err = fmt.Errorf("process %d uses no CUDA: name one that does (cucriu status lists them)", pid)
	}
	return seen.Process, err
}

// requireRunning refuses processes that do not run, within lock.timeout.
func requireRunning(ctx context.Context, s *engine.Suspension) error {
	asking, cancel := context.WithTimeout(ctx, s.PatienceForAll())
	defer cancel()
	return session.GivenUp(ctx, engine.StatesOf(asking, s.Targets, engine.WantRunning))
}
