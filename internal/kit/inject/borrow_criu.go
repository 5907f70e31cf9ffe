package inject

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// If criu is killed in the middle of a dump, it leaves threads inside the code that it has
// put into the process. The first thread notices that criu is gone, closes what it has open
// and returns to where criu found it: in our wait. It must have returned before we put its
// own registers back, or it would return to the wait afterwards.

// leaveCriu lets threads that are in criu's code run until they have left it. All threads
// must be held.
func (l *loan) leaveCriu(ctx context.Context) error {
	code, err := criuCode(l.pid)
	if errors.Is(err, proc.ErrGone) {
		return nil
	}
	if err != nil || len(code) == 0 {
		return err
	}
	for _, t := range l.threads {
		var now registers
		if t.state == ended || now.read(t.TID) != nil || !now.isIn(code) { // it cannot be read if it was killed
			continue
		}
		if err := l.setOptions(t.TID); err != nil {
			return fmt.Errorf("thread %d of process %d, which is in criu's code: %w", t.TID, l.pid, err)
		}
		t.state, t.criuCode = leaving, code
		_ = unix.PtraceSyscall(t.TID, 0)
	}
	return l.hold(ctx)
}

// left follows a thread that is leaving criu's code through one stop.
func (t *borrowedThread) left(status unix.WaitStatus) {
	var now registers
	switch {
	case now.read(t.TID) == nil && !now.isIn(t.criuCode):
	case isSyscallStop(status), isEventStop(status), status.StopSignal() == unix.SIGSTOP:
		_ = unix.PtraceSyscall(t.TID, 0)
		return
	default: // the trap that ends a call which criu made the thread do; criu would now restore its registers
	}
	t.state = returned
}

func (r *registers) isIn(code []proc.Range) bool {
	return slices.ContainsFunc(code, func(c proc.Range) bool { return c.Start <= r.pc() && r.pc() < c.End })
}

// criuCode returns where criu's code lies in a process.
func criuCode(pid int) ([]proc.Range, error) {
	maps, err := proc.Mappings(pid)
	if err != nil {
		return nil, err
	}
	var code []proc.Range
	for _, m := range maps {
		if m.Perms.Execute && strings.HasPrefix(m.Pathname, "/memfd:CRIUMFD") {
			code = append(code, proc.Range{Start: uint64(m.StartAddr), End: uint64(m.EndAddr)})
		}
	}
	return code, nil
}
