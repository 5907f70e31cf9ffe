package criuutil

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// madvise has the threads make the calls.
func (l *loan) madvise(ctx context.Context, ranges []Range, advice int) error {
	slices := cut(ranges, len(l.threads))
	var failed error
	err := l.until(ctx, func() bool {
		busy := false
		for _, t := range l.threads {
			if t.state == returned && t.slice != (Range{}) {
				failed = firstOf(failed, l.result(t, advice))
				t.slice = Range{}
			}
			if (t.state == held || t.state == returned) && len(slices) > 0 && failed == nil {
				t.slice, slices = slices[0], slices[1:]
				failed = l.call(t, advice)
			}
			if t.state == ended {
				failed = firstOf(failed, fmt.Errorf("madvise in thread %d of process %d: %w", t.TID, l.pid, ErrGone))
			}
			busy = busy || t.state == called || t.state == inside
		}
		return !busy
	})
	for _, t := range l.threads {
		t.slice = Range{}
	}
	if err != nil {
		return fmt.Errorf("madvise(%d) in threads of process %d is not finished: %w", advice, l.pid, err)
	}
	return failed
}

// call starts a system call in a thread that is in one of our stops.
func (l *loan) call(t *borrowedThread, advice int) error {
	regs := t.Registers.calling(l.instruction, unix.SYS_MADVISE, t.slice.Start, t.slice.Size(), uint64(advice))
	err := regs.write(t.TID)
	if err == nil {
		err = unix.PtraceSyscall(t.TID, 0)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("make thread %d of process %d call madvise: %w", t.TID, l.pid, err)
	}
	t.state = called // if it was killed, the next wait says so
	return nil
}

func (l *loan) result(t *borrowedThread, advice int) error {
	var regs registers
	err := regs.read(t.TID)
	if result := regs.result(); err == nil && result < 0 {
		err = unix.Errno(-result)
	}
	if errors.Is(err, unix.ESRCH) {
		err = ErrGone
	}
	if err != nil {
		return fmt.Errorf("madvise(%d) of %#x-%#x in thread %d of process %d: %w", advice, t.slice.Start, t.slice.End, t.TID, l.pid, err)
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
func cut(ranges []Range, threads int) []Range {
	const perThread, largest = 4, 64 << 20
	var total uint64
	for _, r := range ranges {
		total += r.Size()
	}
	size := total / uint64(perThread*threads) / hugePage * hugePage
	size = min(max(size, hugePage), largest)
	var slices []Range
	for _, r := range ranges {
		for start := r.Start; start < r.End; {
			end := min(r.End, (start+size)/hugePage*hugePage)
			slices = append(slices, Range{start, end})
			start = end
		}
	}
	return slices
}
