package inject

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// take seizes the threads, saves their registers and masks, and blocks their signals. After an
// error it has released them all.
func (l *loan) take(ctx context.Context, process *proc.Process) error {
	err := l.seizeAll(l.threads)
	if err == nil {
		err = l.hold(ctx)
	}
	if err == nil {
		l.at("seized")
		err = l.requireGroupStop()
	}
	if err == nil {
		err = l.keep(process)
	} else {
		l.detach()
	}
	l.over = err != nil
	return err
}

func (l *loan) seizeAll(threads []*borrowedThread) error {
	for _, t := range threads {
		stat, err := proc.ThreadStat(l.pid, t.TID)
		if err == nil {
			t.StartTime = stat.Starttime
			err = l.seize(t)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// requireGroupStop checks that every thread is in the group-stop, so that it stops again by
// itself if we are killed.
func (l *loan) requireGroupStop() error {
	for _, t := range l.threads {
		switch t.stopSignal {
		case unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
		default:
			if t.state != ended {
				return fmt.Errorf("thread %d of process %d: %w: if cucriu were killed now, the thread would keep running", t.TID, l.pid, ErrNotStopped)
			}
		}
	}
	return nil
}

// keep saves the registers and masks of the threads, and blocks their signals. After an error it
// has released them all, as they were.
func (l *loan) keep(process *proc.Process) error {
	if err := l.note(process); err != nil {
		l.detach()
		return err
	}
	if err := process.ReadMemory(bytesOf(&l.value), l.word()); err != nil {
		return errors.Join(err, l.putBack())
	}
	l.at("saved")
	for _, t := range l.threads {
		if err := allSignals.write(t.TID); err != nil && !errors.Is(err, unix.ESRCH) {
			return errors.Join(fmt.Errorf("block the signals of thread %d of process %d: %w", t.TID, l.pid, err), l.putBack())
		}
		l.at("masked")
	}
	return nil
}

// note reads the registers and masks of the threads, which must still be unchanged, and
// writes the file.
func (l *loan) note(process *proc.Process) error {
	for _, t := range l.threads {
		if t.state == ended {
			return fmt.Errorf("thread %d of process %d: %w", t.TID, l.pid, proc.ErrGone)
		}
		err := t.Registers.read(t.TID)
		if err == nil && !t.Registers.native() {
			return fmt.Errorf("thread %d of process %d is a 32-bit task, which cannot be borrowed", t.TID, l.pid)
		}
		if err == nil && onlyInCall {
			var inCall bool
			if inCall, err = t.Registers.inCall(process); err == nil && !inCall {
				return fmt.Errorf("thread %d of process %d is not in a system call, and cannot be borrowed on this architecture", t.TID, l.pid)
			}
		}
		if err == nil {
			err = t.Mask.read(t.TID)
		}
		if err == nil {
			err = leaveRestartableSequence(process, t.TID, &t.Registers)
		}
		if err == nil {
			err = l.setOptions(t.TID)
		}
		if errors.Is(err, unix.ESRCH) {
			err = proc.ErrGone
		}
		if err != nil {
			return fmt.Errorf("read the registers of thread %d of process %d: %w", t.TID, l.pid, err)
		}
	}
	if l.saved == "" {
		return nil
	}
	return l.savedThreads().write(l.saved)
}

func (l *loan) savedThreads() savedThreads {
	saved := savedThreads{PID: l.pid, Instruction: l.instruction}
	for _, t := range l.threads {
		saved.Threads = append(saved.Threads, t.savedThread)
	}
	return saved
}

// setOptions makes the stops at system calls recognizable, and suspends a seccomp filter of
// the thread while we make calls: the filter might kill it for a madvise.
func (l *loan) setOptions(tid int) error {
	const wanted = unix.PTRACE_O_TRACESYSGOOD
	err := unix.PtraceSetOptions(tid, wanted|unix.PTRACE_O_SUSPEND_SECCOMP)
	if err == nil || errors.Is(err, unix.ESRCH) {
		return err
	}
	// This needs CAP_SYS_ADMIN, and fails if we are under a seccomp filter ourselves.
	status, statusErr := proc.ReadStatus(tid)
	if statusErr != nil {
		return statusErr
	}
	if status.Seccomp {
		return fmt.Errorf("%w: the filter cannot be suspended, and might kill the thread for a system call that cucriu makes in it: %w", ErrFiltered, err)
	}
	return unix.PtraceSetOptions(tid, wanted)
}

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
			l.detach()
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
		return fmt.Errorf("the threads are restored, but still recorded as borrowed: %w", err)
	}
	l.at("removed")
	l.detach()
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
	if err := mask.read(t.TID); err != nil || !mask.isOurs() && !mask.isStepping() {
		return err
	}
	if mask.isStepping() { // the thread was stepped on from the registers that were written down
		return t.Mask.write(t.TID)
	}
	regs := t.Registers
	regs.keepWaiting()
	if err := regs.write(t.TID); err != nil {
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
