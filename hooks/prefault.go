package hooks

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
)

// The driver fills the staging memory with one thread, and most of its time goes
// into the kernel's making fresh pages, of 4 KiB. So while it is at it, threads
// of the process that are stopped anyway make the memory ready: in huge pages,
// all at once. That never changes what is in a page, so it cannot disturb the
// driver's copying.

const (
	// prefaultLeast is the size of a mapping from which it pays, in bytes.
	prefaultLeast = 16 << 20
	// prefaultMargin is how much more than the process holds on its GPUs may be
	// made ready: what the driver maps beyond that it may never fill.
	prefaultMargin = 64 << 20
)

// prefault makes the staging memory of a process ready while it is checkpointed.
// The function that it returns ends that and waits for it.
func (d *dump) prefault(ctx context.Context, t *target) (end func() error) {
	if !d.Config.FastLane.Prefault {
		return func() error { return nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- d.session.span(t.PID, "prefault", func() error { return d.prefaultNew(ctx, t) })
	}()
	return func() error {
		cancel()
		err := <-done
		return err
	}
}

// prefaultNew waits for new mappings and makes them ready, until ctx ends.
func (d *dump) prefaultNew(ctx context.Context, t *target) (err error) {
	restoreThread, err := t.cuda.RestoreThreadID(ctx)
	if err != nil {
		return nil // the checkpoint says why
	}
	var lent *criuutil.Borrowed
	defer func() {
		if lent != nil {
			back, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
			defer cancel()
			err = errors.Join(err, lent.Return(back))
		}
	}()
	known, left := t.before, t.member.stagedBytes()+prefaultMargin
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause): // no event tells of a stranger's mapping
		}
		space, err := criuutil.ReadAddressSpace(t.PID)
		if err != nil {
			return nil
		}
		fresh := space.NewSince(known)
		known = space
		for _, r := range fresh {
			if r.Size() < prefaultLeast || r.Size() > left {
				continue
			}
			left -= r.Size()
			if lent == nil {
				if lent, err = d.session.borrow(ctx, t, d.coresEach(), restoreThread); err != nil {
					d.Log.Debug("the checkpoint is not helped along", "pid", t.PID, "error", err)
					return nil
				}
			}
			if err := prefaultRange(ctx, lent, r); err != nil {
				d.Log.Debug("the checkpoint is not helped along", "pid", t.PID, "error", err)
				return nil
			}
			pause = time.Millisecond
		}
	}
}

func prefaultRange(ctx context.Context, lent *criuutil.Borrowed, r criuutil.Range) error {
	if err := ignoreEINVAL(lent.Madvise(ctx, []criuutil.Range{r}, unix.MADV_HUGEPAGE)); err != nil {
		return err
	}
	return lent.Madvise(ctx, []criuutil.Range{r}, unix.MADV_POPULATE_WRITE)
}
