package stages

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"cucriu/hooks/preflight"
	"cucriu/internal/core/engine"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
)

// child is a process that was forked from a CUDA process of the tree.
type child struct {
	*proc.Process
	holder *inspect.Holder
}

// releaseChildren takes from forked children what they inherited of the driver: criu cannot dump it,
// and CUDA does not work in them. (So it does from other holders that do not use what they hold: see
// [inspect.Holder.Judge].) Each open file becomes /dev/null, and each mapping inaccessible memory.
// The whole tree is stopped meanwhile. It is not undone: the children run on without what they could
// not use.
func (d *dump) releaseChildren(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.Config.Lock.Timeout)
	defer cancel()
	children, err := d.findChildren(ctx)
	defer func() {
		for _, c := range children {
			c.Close()
		}
	}()
	if err != nil || len(children) == 0 {
		return err
	}
	d.Log.Info("children forked from CUDA processes lose the GPU devices, which they cannot use", "children", len(children))
	// The journal is written first: a run that comes after us returns the borrowed threads.
	for _, c := range children {
		d.Session.Children = append(d.Session.Children, c.Ident)
	}
	if err := d.Session.Save(); err != nil {
		return err
	}
	return engine.ParallelUpTo(runtime.NumCPU(), len(children), func(i int) error { return d.disconnect(ctx, children[i].Process, children[i].holder) })
}

// findChildren finds the forked children in the tree. What it found before an error is returned, too.
func (d *dump) findChildren(ctx context.Context) ([]*child, error) {
	pids, cuda := d.truth.PIDs, journal.ProcessesOf(d.Members)
	found := make([]*child, len(pids))
	err := engine.ParallelUpTo(runtime.NumCPU(), len(pids), func(i int) (err error) {
		if slices.ContainsFunc(cuda, func(p inspect.Process) bool { return p.PID == pids[i] }) {
			return nil
		}
		if found[i], err = d.findChild(ctx, pids[i], cuda); errors.Is(err, proc.ErrGone) {
			err = nil
		}
		return err
	})
	return slices.DeleteFunc(found, func(c *child) bool { return c == nil }), err
}

// findChild returns a process as a forked child; nil if it holds nothing of the driver. It looks now that the process is
// parked: what it finds is taken from the process by its number.
func (d *dump) findChild(ctx context.Context, pid int, cuda []inspect.Process) (*child, error) {
	process, err := proc.Open(pid)
	if err != nil {
		return nil, err
	}
	seen, err := inspect.One(ctx, pid, d.LoadDriver)
	var verdict preflight.Finding
	if err == nil && seen.Holder != nil {
		if verdict, err = seen.Holder.Judge(ctx, d.Driver, cuda); err == nil {
			err = d.Refuse(preflight.Findings{verdict})
		}
	}
	if err != nil || seen.Holder == nil || verdict.Severity == preflight.SeverityError { // overridden: criu decides
		process.Close()
		return nil, err
	}
	return &child{process, seen.Holder}, nil
}

// releaseDevices takes from the CUDA processes the devices that they hold although they are
// checkpointed, if they do not use them. Otherwise the dump fails here, with the reason that criu would
// not give.
func (d *dump) releaseDevices(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.Config.Lock.Timeout)
	defer cancel()
	return engine.Parallel(d.Targets, func(t *engine.Target) error {
		holder, err := inspect.Leftover(&t.Member.Process)
		if err != nil || holder == nil {
			return err
		}
		verdict := holder.JudgeLeftover(ctx, d.Driver, d.Listed)
		if verdict.Severity == preflight.SeverityError {
			if err := d.Refuse(preflight.Findings{verdict}); err != nil {
				return &leftoverError{verdict}
			}
			return nil // overridden: criu decides
		}
		if err := d.disconnect(ctx, t.Process, holder); err != nil {
			return err
		}
		// As after the drop: every thread must be back in the group-stop.
		return proc.KeepStopped(ctx, t.Process)
	})
}

// leftoverError says that a process cannot be dumped for what it holds. It is no refusal: the process
// has been checkpointed by then.
type leftoverError struct{ finding preflight.Finding }

func (e *leftoverError) Error() string { return e.finding.String() }

// disconnect takes from a stopped process what it holds of the driver. One of its threads makes the
// calls. It succeeds if the process has ended.
func (d *dump) disconnect(ctx context.Context, process *proc.Process, holder *inspect.Holder) (err error) {
	defer func() {
		if errors.Is(err, proc.ErrGone) && !process.Alive() {
			err = nil
		}
	}()
	descriptors, err := holder.Descriptors()
	if err != nil {
		return err
	}
	lent, err := borrowOne(ctx, process, d.Session.BorrowedFile(process.PID))
	if err != nil {
		return fmt.Errorf("GPU devices that process %d (%s) does not use could not be closed in it: %w", process.PID, holder.Name, err)
	}
	err = d.Session.Failpoint(ctx, "dump.borrow-child")
	if err == nil {
		err = lent.Disconnect(ctx, descriptors, holder.Mappings())
	}
	if err == nil {
		err = d.Session.Failpoint(ctx, "dump.child-released")
	}
	return errors.Join(err, lent.Return(ctx))
}

// borrowOne borrows a thread of a process that was stopped. If somebody has continued it, it is stopped
// again.
func borrowOne(ctx context.Context, process *proc.Process, saved string) (*inject.Borrowed, error) {
	for {
		lent, err := borrowFirst(ctx, process.PID, saved)
		if !errors.Is(err, inject.ErrNotStopped) || ctx.Err() != nil {
			return lent, err
		}
		if err := proc.KeepStopped(ctx, process); err != nil {
			return nil, err
		}
	}
}

// borrowFirst borrows the first thread that has not ended.
func borrowFirst(ctx context.Context, pid int, saved string) (lent *inject.Borrowed, err error) {
	tids, err := proc.Threads(pid)
	if err != nil {
		return nil, err
	}
	for _, tid := range tids {
		if lent, err = inject.Borrow(ctx, pid, []int{tid}, saved); !errors.Is(err, proc.ErrGone) {
			break
		}
	}
	return lent, err
}
