package stages

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/inject"
	"cucriu/internal/proc"
)

// frozen finds the freezers that keep a part of a tree from running. The container engine froze them
// before it called criu.
func frozen(root int) ([]proc.Freezer, error) {
	pids, err := proc.Tree(root)
	if err != nil {
		return nil, err
	}
	hierarchies, err := proc.ReadHierarchies()
	if err != nil {
		return nil, err
	}
	var all []proc.Freezer
	for _, pid := range pids {
		freezers, err := hierarchies.FrozenBy(pid)
		if err != nil && !errors.Is(err, proc.ErrGone) {
			return nil, err
		}
		for _, freezer := range freezers {
			if !slices.Contains(all, freezer) {
				all = append(all, freezer)
			}
		}
	}
	return all, nil
}

func (d *dump) thaw(ctx context.Context, freezers []proc.Freezer) error {
	for _, freezer := range freezers {
		d.Log.Info("thawing what the container engine froze", "cgroup", freezer.Dir)
		if err := freezer.Thaw(ctx); err != nil {
			return err
		}
		d.Thawed = append(d.Thawed, freezer)
	}
	return nil
}

// freezing is what criu finds frozen instead of stopped.
type freezing struct{ *dump }

// freeze prepares the processes for how criu seizes containers. Through a v1 freezer it waits without
// end for a process in the group-stop, so such processes are frozen instead. A v2 freezer that we
// thawed is put back.
func (d freezing) freeze(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.Config.Lock.Timeout)
	defer cancel()
	if err := d.Refreeze(ctx); err != nil {
		return err
	}
	for _, t := range d.Targets {
		if t.Member.Stopped {
			continue
		}
		frozen, err := d.freezeInstead(ctx, t.Process, t.Parked)
		if err != nil {
			return err
		}
		t.Frozen = frozen
	}
	for _, other := range d.Others {
		if _, err := d.freezeInstead(ctx, other, d.ParkedOthers[other.PID]); err != nil {
			return err
		}
	}
	return nil
}

// freezeInstead takes a process from stopped to frozen if criu will seize it through a v1 freezer. No
// thread of it runs meanwhile.
func (d freezing) freezeInstead(ctx context.Context, process *proc.Process, parked *inject.Parked) (bool, error) {
	frozen, err := d.freezeV1(ctx, process.PID)
	if err != nil || !frozen {
		if errors.Is(err, proc.ErrGone) {
			err = nil
		}
		return false, err
	}
	if parked != nil {
		err = parked.Continue(process)
	} else {
		err = process.Signal(unix.SIGCONT)
	}
	if errors.Is(err, proc.ErrGone) {
		err = nil
	}
	return err == nil, err
}

// freezeV1 freezes the v1 freezer of a process if criu will seize the process through it. Under RPC the
// option that says so cannot be seen, and the process is usually in a container, so it is frozen. A
// group that holds criu itself never is.
func (d freezing) freezeV1(ctx context.Context, pid int) (bool, error) {
	freezers, err := proc.FreezersOf(pid)
	if err != nil {
		return false, err
	}
	own, err := proc.FreezersOf(d.criu.PID)
	if err != nil {
		return false, err
	}
	for _, freezer := range freezers {
		if freezer.V1 && slices.Contains(d.Thawed, freezer) {
			return true, nil // refreeze has put it back
		}
	}
	if !d.criu.FreezeCgroup && !d.criu.RPC {
		return false, nil
	}
	for _, freezer := range freezers {
		if freezer.V1 && !slices.Contains(own, freezer) {
			return true, freezer.Freeze(ctx)
		}
	}
	return false, nil
}
