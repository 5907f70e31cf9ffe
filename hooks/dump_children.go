package hooks

import (
	"context"
	"errors"
	"runtime"
	"slices"

	"cucriu/hooks/preflight"
	"cucriu/internal/proc"
)

// child is a process that was forked from a CUDA process of the tree.
type child struct {
	*proc.Process
	holder *preflight.Holder
}

// releaseChildren takes from the forked children what they inherited of the driver: criu cannot
// dump it, and CUDA does not work in them. (Other holders that do not use what they hold lose it,
// too: see [preflight.Holder.Judge].) Each open file becomes /dev/null, and each mapping
// inaccessible memory. The whole tree stands still, so nobody forks or opens anything meanwhile,
// and the children are judged by what they are now.
//
// It is not undone if the dump fails, and a part of it may be done: the children run on without
// what they could not use.
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
		d.session.Children = append(d.session.Children, c.Ident)
	}
	if err := d.session.Save(); err != nil {
		return err
	}
	return parallelUpTo(runtime.NumCPU(), len(children), func(i int) error { return d.disconnect(ctx, children[i].Process, children[i].holder) })
}

// findChildren finds the forked children in the tree. What it found before an error is returned,
// too.
func (d *dump) findChildren(ctx context.Context) ([]child, error) {
	pids, err := proc.Tree(d.root)
	if err != nil {
		return nil, err
	}
	cuda := make([]preflight.Process, len(d.members))
	for i, m := range d.members {
		cuda[i] = m.Process
	}
	found := make([]*child, len(pids))
	err = parallelUpTo(runtime.NumCPU(), len(pids), func(i int) (err error) {
		if slices.ContainsFunc(cuda, func(p preflight.Process) bool { return p.PID == pids[i] }) {
			return nil
		}
		if found[i], err = d.findChild(ctx, pids[i], cuda); errors.Is(err, proc.ErrGone) {
			err = nil
		}
		return err
	})
	var children []child
	for _, c := range found {
		if c != nil {
			children = append(children, *c)
		}
	}
	return children, err
}

// findChild returns a process as a forked child; nil if it holds nothing of the driver.
func (d *dump) findChild(ctx context.Context, pid int, cuda []preflight.Process) (*child, error) {
	process, err := proc.Open(pid)
	if err != nil {
		return nil, err
	}
	seen, err := preflight.InspectProcess(ctx, pid, d.loadDriver)
	var verdict preflight.Finding
	if err == nil && seen.Holder != nil {
		if verdict, err = seen.Holder.Judge(ctx, d.driver, cuda); err == nil {
			err = d.refuse(preflight.Findings{verdict})
		}
	}
	if err != nil || seen.Holder == nil || verdict.Severity == preflight.SeverityError { // overridden: criu decides
		process.Close()
		return nil, err
	}
	return &child{process, seen.Holder}, nil
}
