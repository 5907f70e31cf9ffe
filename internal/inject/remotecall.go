package inject

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
)

// remoteCall is a system call on a range of memory.
type remoteCall struct {
	name     string
	number   uint64
	argument int // the third one, after address and size
	// slice is the largest size, in bytes, of one call if the call works page by page. It
	// is 0 if the call works on the mapping and is made once for each range.
	slice uint64
}

func (c remoteCall) String() string { return fmt.Sprintf("%s(%d)", c.name, c.argument) }

// callAll makes the threads call on all of the ranges.
func (l *loan) callAll(ctx context.Context, ranges []proc.Range, what remoteCall) error {
	slices := slices.Clone(ranges)
	if what.slice > 0 {
		slices = cut(ranges, len(l.threads), what.slice)
	}
	var failed error
	err := l.until(ctx, func() bool {
		busy := false
		for _, t := range l.threads {
			var err error
			if t.state == ended || t.state == returned && t.slice != (proc.Range{}) {
				if _, err = l.leave(t); err != nil {
					err = fmt.Errorf("%v of %#x-%#x in thread %d of process %d: %w", what, t.slice.Start, t.slice.End, t.TID, l.pid, err)
				}
				t.slice = proc.Range{}
			}
			if failed = cmp.Or(failed, err); failed == nil && (t.state == held || t.state == returned) && len(slices) > 0 {
				t.slice, slices = slices[0], slices[1:]
				if err := l.enter(t, what.number, t.slice.Start, t.slice.Size(), uint64(what.argument)); err != nil {
					failed = fmt.Errorf("make thread %d of process %d call %v: %w", t.TID, l.pid, what, err)
				}
			}
			busy = busy || t.state == called || t.state == inside
		}
		return !busy
	})
	for _, t := range l.threads {
		t.slice = proc.Range{}
	}
	if err != nil {
		return fmt.Errorf("%v in threads of process %d has not finished: %w", what, l.pid, err)
	}
	return failed
}

// enter lets a thread that is in one of our stops make a system call.
func (l *loan) enter(t *borrowedThread, number uint64, arguments ...uint64) error {
	regs := t.Registers.calling(l.instruction, number, arguments...)
	err := regs.write(t.TID)
	if err == nil {
		err = unix.PtraceSyscall(t.TID, 0)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	t.state = called // if it was killed, the next wait reports it
	return nil
}

// leave returns what the call of a thread has returned.
func (l *loan) leave(t *borrowedThread) (uint64, error) {
	if t.state == ended {
		return 0, proc.ErrGone
	}
	var regs registers
	err := regs.read(t.TID)
	result := regs.result()
	switch {
	case errors.Is(err, unix.ESRCH):
		err = proc.ErrGone
	case err == nil && -4096 < result && result < 0: // linux/err.h
		err = unix.Errno(-result)
	}
	return uint64(result), cmp.Or(err, l.idle(t))
}

// idle points a thread whose call has returned at the endless wait. We may be killed before
// the thread makes its next call or is returned, and somebody may end the group-stop with
// SIGCONT. Without the wait the thread would then continue behind the instruction that made
// the call, in the middle of code that it never entered.
func (l *loan) idle(t *borrowedThread) error {
	if err := l.pointAtWait(t); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("thread %d of process %d: %w", t.TID, l.pid, err)
	}
	return nil
}

// hugePage is the alignment of slices, so that none splits a huge page.
const hugePage = 2 << 20 // bytes

// cut cuts ranges into slices for a number of threads. The slices are small enough to keep
// all threads busy until the end, and large enough that a thread's stops between two of
// them cost little.
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
