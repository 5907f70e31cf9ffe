package hooks

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"cucriu/internal/inject"
	"cucriu/internal/proc"
)

// drop drops, in the processes, the memory that was copied out. The journal says ahead that
// it must be filled in again.
func (d *dump) drop(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, d.Config.Checkpoint.Timeout)
	defer cancel()
	if err := d.leaveLocked(ctx); err != nil {
		return err
	}
	for _, t := range d.inLane() {
		err := d.session.failpoint(ctx, "dump.borrow")
		if err == nil {
			t.lane.lent, err = d.session.borrow(ctx, t, d.coresEach(), 0, d.session.borrowedFile(t.PID))
		}
		if err != nil {
			d.Log.Warn("no system calls can be made in the process: criu writes its GPU state", "pid", t.PID, "error", err)
			if err := d.leaveToCriu(t); err != nil {
				return err
			}
		}
	}
	if d.manifest, err = d.describe(); err != nil {
		return err
	}
	in := d.inLane()
	for _, t := range in {
		t.member.Pages.Dropped = true
	}
	if err := d.session.Save(); err != nil {
		return err
	}
	if err := d.session.failpoint(ctx, "dump.noted"); err != nil {
		return err
	}
	return parallel(in, func(t *target) error {
		return d.session.spanOf(t.PID, "drop", func() error { return d.dropOne(ctx, t) })
	})
}

func (d *dump) dropOne(ctx context.Context, t *target) error {
	l := t.lane
	err := l.lent.Madvise(ctx, l.ranges, unix.MADV_DONTNEED)
	if errors.Is(err, unix.EINVAL) { // the process locks its memory (mlockall)
		err = l.lent.Madvise(ctx, l.ranges, unix.MADV_DONTNEED_LOCKED)
	}
	if err != nil {
		return err
	}
	if err := d.session.failpoint(ctx, "dump.dropping"); err != nil {
		return err
	}
	if err := l.lent.Mprotect(ctx, l.ranges, unix.PROT_NONE); err != nil {
		return err
	}
	if err := d.session.failpoint(ctx, "dump.inaccessible"); err != nil {
		return err
	}
	if err := l.lent.Return(ctx); err != nil {
		return err
	}
	// Every thread must be back in the group-stop before criu comes. If one is not, criu
	// lets it run, to see it stop a second time.
	return proc.KeepStopped(ctx, t.Process)
}

// borrow borrows up to most threads of a stopped process, but not the thread except, and
// notes them in the file saved.
func (s *session) borrow(ctx context.Context, t *target, most, except int, saved string) (*inject.Borrowed, error) {
	tids, err := proc.Threads(t.PID)
	if err != nil {
		return nil, err
	}
	var lent []int
	for _, tid := range tids {
		if tid != except && len(lent) < most {
			lent = append(lent, tid)
		}
	}
	for {
		borrowed, err := inject.Borrow(ctx, t.PID, lent, saved)
		if !errors.Is(err, inject.ErrNotStopped) || ctx.Err() != nil {
			return borrowed, err
		}
		// Somebody has continued it.
		if err := t.requireHeld(); err != nil {
			return nil, err
		}
		if err := proc.KeepStopped(ctx, t.Process); err != nil {
			return nil, err
		}
	}
}

// borrowedFile names the file that keeps what belongs to the borrowed threads of a process,
// for a run that comes after us.
func (s *session) borrowedFile(pid int) string {
	return filepath.Join(s.Dir(), "threads-"+strconv.Itoa(pid)+".json")
}
