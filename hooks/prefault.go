package hooks

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
)

// The driver maps its staging memory at once and has the kernel populate it
// (mmap with MAP_POPULATE): one thread, which makes pages of 4 KiB at 4 GB/s, two
// thirds of the time of a checkpoint. Instead, threads of the process that are
// stopped anyway make the memory ready: in huge pages, all at once. What is in a
// page never changes by that.

// prefaultLeast is the size of a mapping from which it pays, in bytes.
const prefaultLeast = 16 << 20

// prefault is told of the staging memory of a process while its restore thread
// waits for it. It does what it can: where it can do nothing, the driver finds its
// memory fresh.
func (d *dump) prefault(ctx context.Context, t *target, restoreThread int) func(criuutil.Range) (more bool) {
	left := t.member.stagedBytes()
	return func(r criuutil.Range) bool {
		err := d.session.span(t.PID, "prefault", func() error { return d.prefaultRange(ctx, t, restoreThread, r) })
		if err != nil {
			d.Log.Warn("the memory for the checkpoint could not be made ready by several threads; it takes longer", "pid", t.PID, "error", err)
		}
		left -= min(left, r.Size())
		return left >= prefaultLeast
	}
}

func (d *dump) prefaultRange(ctx context.Context, t *target, restoreThread int, r criuutil.Range) (err error) {
	lent, err := d.session.borrow(ctx, t, d.coresEach(), restoreThread, d.session.borrowedFile(t.PID))
	if err != nil {
		return err
	}
	defer func() {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		err = errors.Join(err, lent.Return(back))
	}()
	ranges := []criuutil.Range{r}
	if err := ignoreEINVAL(lent.Madvise(ctx, ranges, unix.MADV_HUGEPAGE)); err != nil {
		return err
	}
	if err := failpoint(ctx, d.session, "dump.prefault"); err != nil {
		return err
	}
	return lent.Madvise(ctx, ranges, unix.MADV_POPULATE_WRITE)
}
