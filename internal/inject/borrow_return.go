package inject

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
)

// giveBack ends a loan: it holds the threads and puts back what they were.
func (l *loan) giveBack(ctx context.Context) error {
	err := l.hold(ctx)
	if err == nil {
		err = l.putBack()
	}
	l.over = err == nil || l.saved != ""
	return err
}

// takeOver gives back the threads that another program borrowed.
func (l *loan) takeOver(ctx context.Context) (err error) {
	l.over = true
	defer func() {
		if err != nil {
			l.letGo()
		}
	}()
	for _, t := range l.threads {
		err := l.same(t)
		if err == nil {
			err = l.seize(t)
		}
		if errors.Is(err, proc.ErrGone) {
			t.state = ended
		} else if err != nil {
			return err
		}
	}
	if err := l.hold(ctx); err != nil {
		return err
	}
	if err := l.leaveCriu(ctx); err != nil {
		return err
	}
	l.at("taken over")
	return l.putBack()
}

// putBack restores every thread; all of them must be held. It removes the file before it
// releases them, so that the file never exists while they run.
func (l *loan) putBack() error {
	for _, t := range l.threads {
		if err := l.restore(t); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("put back the registers of thread %d: %w", t.TID, err)
		}
		l.at("put back")
	}
	l.at("all put back")
	if err := os.Remove(l.saved); err != nil && !errors.Is(err, fs.ErrNotExist) { // the empty name gives fs.ErrNotExist, too
		return fmt.Errorf("they are restored, but still recorded as borrowed: %w", err)
	}
	l.at("removed")
	l.letGo()
	return nil
}

// restore gives a thread its registers and mask back, unless it has them already. A thread
// that does not block all signals has them: an earlier call restored it and was killed
// before it removed the file, and the thread may have run since. A thread that does block
// them need not be in our system call: criu may have been killed while it had the thread
// elsewhere.
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

// isOurs reports whether only we set such a mask: one that blocks every signal that can be
// blocked, or all but SIGCONT. SIGTRAP is not counted, because the trap that ends a call by
// criu unblocks it.
func (m signalMask) isOurs() bool {
	const never = signalMask(1<<(unix.SIGKILL-1) | 1<<(unix.SIGSTOP-1) | 1<<(unix.SIGCONT-1) | 1<<(unix.SIGTRAP-1))
	return m|never == allSignals
}
