package inject

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// giveBack is the end of a loan.
func (l *loan) giveBack(ctx context.Context) error {
	err := l.hold(ctx)
	if err == nil {
		err = l.putBack()
	}
	l.over = err == nil || l.saved != ""
	if err != nil {
		return fmt.Errorf("return borrowed threads of process %d: %w", l.pid, err)
	}
	return nil
}

// takeOver gives back what another has borrowed.
func (l *loan) takeOver(ctx context.Context) error {
	l.over = true
	for _, t := range l.threads {
		err := l.same(t)
		if err == nil {
			err = l.seize(t)
		}
		if errors.Is(err, proc.ErrGone) {
			t.state = ended
		} else if err != nil {
			l.letGo()
			return fmt.Errorf("return borrowed threads of process %d: %w", l.pid, err)
		}
	}
	err := l.hold(ctx)
	if err == nil {
		err = l.leaveCriu(ctx)
	}
	if err == nil {
		l.at("taken over")
		err = l.putBack()
	}
	if err != nil {
		l.letGo()
		return fmt.Errorf("return borrowed threads of process %d: %w", l.pid, err)
	}
	return nil
}

// putBack makes every thread, all of which are held, what it was. The file is
// removed before they are let go of, so that it is never there when they run.
func (l *loan) putBack() error {
	for _, t := range l.threads {
		if err := l.restore(t); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("put back the registers of thread %d: %w", t.TID, err)
		}
		l.at("put back")
	}
	l.at("all put back")
	if l.saved == "" {
		l.letGo()
		return nil
	}
	if err := os.Remove(l.saved); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("they are whole but still noted as borrowed: %w", err)
	}
	l.at("removed")
	l.letGo()
	return nil
}

// restore makes a thread what it was. One that does not block every signal is that
// already: somebody who put it back was killed before the file was removed, and it may
// have run since. One that does need not be in our call: criu may have been killed with
// it elsewhere.
func (l *loan) restore(t *borrowedThread) error {
	if t.state == ended {
		return nil
	}
	var mask signalMask
	if err := mask.read(t.TID); err != nil || !mask.isOurs() {
		return err
	}
	if err := t.Registers.write(t.TID); err != nil {
		return err
	}
	return t.Mask.write(t.TID)
}

// isOurs reports whether a mask is one that only we set: of every signal that can be
// blocked, or of all but SIGCONT. The trap at the end of what criu has a thread call
// unblocks SIGTRAP.
func (m signalMask) isOurs() bool {
	const never = signalMask(1<<(unix.SIGKILL-1) | 1<<(unix.SIGSTOP-1) | 1<<(unix.SIGCONT-1) | 1<<(unix.SIGTRAP-1))
	return m|never == allSignals
}
