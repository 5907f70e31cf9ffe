package inject

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// remoteCall is a system call on a range of memory.
type remoteCall struct {
	name     string
	number   uint64
	argument int // beside the address and the size
	// slice is the most that one call is given, in bytes, if it works on pages;
	// 0 if it works on the mapping, and is made once for each range.
	slice uint64
}

func (c remoteCall) String() string { return fmt.Sprintf("%s(%d)", c.name, c.argument) }

// callAll has the threads make a call on all of the ranges.
func (l *loan) callAll(ctx context.Context, ranges []proc.Range, what remoteCall) error {
	slices := slices.Clone(ranges)
	if what.slice > 0 {
		slices = cut(ranges, len(l.threads), what.slice)
	}
	var failed error
	err := l.until(ctx, func() bool {
		busy := false
		for _, t := range l.threads {
			if t.state == returned && t.slice != (proc.Range{}) {
				failed = firstOf(failed, l.result(t, what), l.idle(t))
				t.slice = proc.Range{}
			}
			if (t.state == held || t.state == returned) && len(slices) > 0 && failed == nil {
				t.slice, slices = slices[0], slices[1:]
				failed = l.call(t, what)
			}
			if t.state == ended {
				failed = firstOf(failed, fmt.Errorf("%v in thread %d of process %d: %w", what, t.TID, l.pid, proc.ErrGone))
			}
			busy = busy || t.state == called || t.state == inside
		}
		return !busy
	})
	for _, t := range l.threads {
		t.slice = proc.Range{}
	}
	if err != nil {
		return fmt.Errorf("%v in threads of process %d is not finished: %w", what, l.pid, err)
	}
	return failed
}

// call starts a system call in a thread that is in one of our stops.
func (l *loan) call(t *borrowedThread, what remoteCall) error {
	regs := t.Registers.calling(l.instruction, what.number, t.slice.Start, t.slice.Size(), uint64(what.argument))
	err := regs.write(t.TID)
	if err == nil {
		err = unix.PtraceSyscall(t.TID, 0)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("make thread %d of process %d call %v: %w", t.TID, l.pid, what, err)
	}
	t.state = called // if it was killed, the next wait says so
	return nil
}

func (l *loan) result(t *borrowedThread, what remoteCall) error {
	var regs registers
	err := regs.read(t.TID)
	if result := regs.result(); err == nil && result < 0 {
		err = unix.Errno(-result)
	}
	if errors.Is(err, unix.ESRCH) {
		err = proc.ErrGone
	}
	if err != nil {
		return fmt.Errorf("%v of %#x-%#x in thread %d of process %d: %w", what, t.slice.Start, t.slice.End, t.TID, l.pid, err)
	}
	return nil
}

// idle leaves a thread whose call has returned at a wait. If we are killed before it
// is called again or returned, and somebody has ended the group-stop by SIGCONT, it
// would go on behind the call, in the middle of code that it has never entered.
func (l *loan) idle(t *borrowedThread) error {
	if err := l.pointAtWait(t); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("thread %d of process %d: %w", t.TID, l.pid, err)
	}
	return nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// hugePage is how slices are aligned, so that none splits a huge page.
const hugePage = 2 << 20 // bytes

// cut cuts ranges into slices for so many threads: small enough that all
// threads have work until the end, large enough that the stops of a thread
// between two of them do not count.
func cut(ranges []proc.Range, threads int, largest uint64) []proc.Range {
	const perThread = 4
	var total uint64
	for _, r := range ranges {
		total += r.Size()
	}
	size := total / uint64(perThread*threads) / hugePage * hugePage
	size = min(max(size, hugePage), largest)
	var slices []proc.Range
	for _, r := range ranges {
		for start := r.Start; start < r.End; {
			end := min(r.End, (start+size)/hugePage*hugePage)
			slices = append(slices, proc.Range{Start: start, End: end})
			start = end
		}
	}
	return slices
}
