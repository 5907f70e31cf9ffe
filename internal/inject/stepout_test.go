package inject

import (
	"testing"

	"github.com/prometheus/procfs"

	"cucriu/internal/proc"
)

func every(_ *proc.Process, threads []savedThread, _ []*procfs.ProcMap) (all []int) {
	for i := range threads {
		if !threads[i].Registers.waits() {
			all = append(all, i)
		}
	}
	return all
}

// TestAParkedThreadIsSteppedOn through its program, whatever that does, and is parked again where it then is.
func TestAParkedThreadIsSteppedOn(t *testing.T) {
	t.Parallel()
	p := startBorrowable(t)
	for moved := 0; moved == 0; { // the thread that computes is at a system call at times
		moved = p.stepOn(t)
	}
}

// stepOn returns how many threads have moved.
func (p *borrowable) stepOn(t *testing.T) (moved int) {
	t.Helper()
	before := p.park(t)
	parked, err := stepOutIn(t.Context(), p.PID, 3000, every, func() bool { return false }, p.saved, func(string) {})
	must(t, err)
	for i, thread := range parked.Threads {
		if thread.Registers != before.Threads[i].Registers {
			moved++
		}
		if thread.Mask != before.Threads[i].Mask {
			t.Errorf("thread %d: its mask was %#x, and is said to be %#x", thread.TID, before.Threads[i].Mask, thread.Mask)
		}
	}
	p.wantWaiting(t, parked)
	p.stop(t)
	must(t, ReturnBorrowed(t.Context(), p.saved))
	p.wantReturned(t)
	p.goesOn(t)
	return moved
}
