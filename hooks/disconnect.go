package hooks

import (
	"context"
	"errors"
	"fmt"

	"cucriu/hooks/preflight"
	"cucriu/internal/inject"
	"cucriu/internal/proc"
)

// disconnect takes from a stopped process what it holds of the driver. One of its threads makes
// the calls. It succeeds if the process has ended.
func (d *dump) disconnect(ctx context.Context, process *proc.Process, holder *preflight.Holder) (err error) {
	defer func() {
		if errors.Is(err, proc.ErrGone) && !process.Alive() {
			err = nil
		}
	}()
	descriptors, err := holder.Descriptors()
	if err != nil {
		return err
	}
	lent, err := borrowOne(ctx, process, d.session.borrowedFile(process.PID))
	if err != nil {
		return fmt.Errorf("process %d (%s) cannot be rid of GPU devices that it does not use: %w", process.PID, holder.Name, err)
	}
	err = d.session.failpoint(ctx, "dump.borrow-child")
	if err == nil {
		err = lent.Disconnect(ctx, descriptors, holder.Mappings())
	}
	if err == nil {
		err = d.session.failpoint(ctx, "dump.child-released")
	}
	return errors.Join(err, lent.Return(ctx))
}

// borrowOne borrows a thread of a process that was stopped. If somebody has continued it, it is
// stopped again.
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
