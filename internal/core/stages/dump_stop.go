package stages

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/engine"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// stopTree puts every thread of the tree into the group-stop: a thread that synchronized with the GPU
// would die, and a parent would find that its workers do not answer. It looks again for new processes
// until nobody is left who could make more.
func (d *dump) stopTree(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.PatienceForAll())
	defer cancel()
	if err := proc.SignalAll(unix.SIGSTOP, engine.ProcessesOf(d.Targets)...); err != nil {
		return err
	}
	for again := true; again; {
		var err error
		if again, err = d.stopOthers(ctx); err != nil {
			return err
		}
	}
	if err := d.Stop(ctx); err != nil {
		return err
	}
	return d.readTruth()
}

// readTruth looks at the tree, which is stopped.
func (d *dump) readTruth() (err error) {
	if d.truth, err = inventory.Truth(d.Root); err != nil {
		return err
	}
	// Nobody opens a file of the job from here on if that would end it, or wait for it.
	if err := d.truth.CheckUnguarded(); err != nil {
		return err
	}
	truth := d.truth
	// Beside the steps that move the GPU memory to the host: the kernel walks through all of a process's pages.
	d.settings = sync.OnceValues(func() ([]proc.Settings, error) { return settingsOf(truth) })
	go func(read func() ([]proc.Settings, error)) { _, _ = read() }(d.settings)
	return nil
}

func (d *dump) moveMemory(ctx context.Context) error { return d.MoveMemory(ctx, d.stopTree) }

// stopOthers stops the processes without CUDA that were not found before, and reports whether there
// were any.
func (d *dump) stopOthers(ctx context.Context) (bool, error) {
	found, err := d.findOthers(ctx)
	if err != nil || len(found) == 0 {
		return false, err
	}
	// The journal is written first: a run that comes after us continues these processes.
	for _, other := range found {
		if !slices.Contains(d.Session.Others, other.Ident) { // else it was continued, and is stopped again
			d.Session.Others = append(d.Session.Others, other.Ident)
		}
	}
	if err := d.Session.Save(); err != nil {
		return false, err
	}
	if err := proc.SignalAll(unix.SIGSTOP, found...); err != nil {
		return false, err
	}
	return true, d.AwaitStopped(ctx, found)
}

// findOthers finds the processes without CUDA that run and that were not found before. They are closed
// with the dump.
func (d *dump) findOthers(ctx context.Context) ([]*proc.Process, error) {
	pids, err := proc.Tree(d.Root)
	if err != nil {
		return nil, err
	}
	var found []*proc.Process
	for _, pid := range pids {
		isKnown := func(p *proc.Process) bool { return p.PID == pid }
		if slices.ContainsFunc(engine.ProcessesOf(d.Targets), isKnown) || slices.ContainsFunc(d.Others, isKnown) {
			continue
		}
		p, err := inspect.One(ctx, pid, d.LoadDriver)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := d.Refuse(p.Findings); err != nil {
			return nil, err
		}
		if p.Process != nil { // what a process without CUDA holds of the driver is judged when it is parked
			return nil, fmt.Errorf("process %d (%s) started using CUDA during the dump: retry the dump", pid, p.Name)
		}
		stopped, err := proc.Stopped(pid)
		if errors.Is(err, proc.ErrGone) || stopped {
			continue // it has ended, or was stopped before we came and stays so
		}
		if err != nil {
			return nil, err
		}
		process, err := proc.Open(pid)
		if errors.Is(err, proc.ErrGone) {
			continue // a zombie
		}
		if err != nil {
			return nil, err
		}
		d.Others = append(d.Others, process)
		found = append(found, process)
	}
	return found, nil
}

// findStopped returns which processes of a tree are stopped that are no members, by their pids in the
// image. It is called before we freeze or stop any.
func findStopped(root int, members []journal.Member) (stopped []int, err error) {
	pids, err := proc.Tree(root)
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		if slices.ContainsFunc(members, func(m journal.Member) bool { return m.PID == pid }) {
			continue
		}
		isStopped, err := proc.Stopped(pid)
		var status proc.Status
		if isStopped {
			status, err = proc.ReadStatus(pid)
		}
		switch {
		case err != nil && !errors.Is(err, proc.ErrGone):
			return nil, err
		case err == nil && isStopped && !status.Ended:
			stopped = append(stopped, status.ImagePID())
		}
	}
	return stopped, nil
}

func (d *dump) parkTree(ctx context.Context) error {
	if err := d.Park(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, d.Config.Lock.Timeout)
	defer cancel()
	d.ParkedOthers = make(map[int]*inject.Parked)
	for parked := 0; ; {
		found := d.Others[parked:]
		threads := make([]*inject.Parked, len(found))
		err := engine.ParallelUpTo(runtime.NumCPU(), len(found), func(i int) (err error) {
			threads[i], err = d.parkOther(ctx, found[i])
			return err
		})
		for i, other := range found {
			if threads[i] != nil {
				d.ParkedOthers[other.PID] = threads[i]
			}
		}
		if err != nil {
			return err
		}
		parked = len(d.Others)
		// A process may have made another since the last look: it was about to fork when it was told to
		// stop, or somebody continued it before it was parked.
		again, err := d.stopOthers(ctx)
		if err != nil {
			return err
		}
		if again {
			if err := d.readTruth(); err != nil {
				return err
			}
			continue
		}
		// A thread that was released falls back into the group-stop by itself, but not at once. If criu comes
		// before that, its seizing takes one stop for two, lets the thread run, and waits without end.
		if err := proc.KeepStopped(ctx, d.Others...); err != nil {
			return err
		}
		return d.noteStopped()
	}
}

// parkOther parks a process without CUDA. It returns nil if the process is held by its stop alone.
func (d *dump) parkOther(ctx context.Context, other *proc.Process) (*inject.Parked, error) {
	parked, err := engine.Park(ctx, d.Session, other)
	if half, fileErr := inject.IsParked(d.Session.ParkedFile(other.PID)); errors.Is(err, inject.ErrFiltered) && !half && fileErr == nil {
		return nil, nil // it is only stopped, and may run without harm
	}
	return parked, d.ParkedOrStopped(ctx, other, err)
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

// freeze prepares the processes for how criu seizes containers. Through a v1 freezer it waits without
// end for a process in the group-stop, so such processes are frozen instead. A v2 freezer that we
// thawed is put back.
func (d *dump) freeze(ctx context.Context) error {
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
func (d *dump) freezeInstead(ctx context.Context, process *proc.Process, parked *inject.Parked) (bool, error) {
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
func (d *dump) freezeV1(ctx context.Context, pid int) (bool, error) {
	hierarchies, err := proc.ReadHierarchies()
	if err != nil {
		return false, err
	}
	freezers, err := hierarchies.FreezersOf(pid)
	if err != nil {
		return false, err
	}
	own, err := hierarchies.FreezersOf(d.criu.PID)
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(freezers, func(f proc.Freezer) bool { return f.V1 && slices.Contains(d.Thawed, f) }) {
		return true, nil // refreeze has put it back
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
