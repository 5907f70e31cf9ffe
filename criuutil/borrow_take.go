package criuutil

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// take seizes the threads, notes what they are, and blocks their signals.
func (l *loan) take(ctx context.Context, process *Process) (err error) {
	defer func() {
		if err != nil {
			l.over = true
		}
	}()
	for _, t := range l.threads {
		stat, err := threadStat(l.pid, t.TID)
		if err == nil {
			t.StartTime = uint64(stat.Starttime)
			err = l.seize(t)
		}
		if err != nil {
			l.letGo()
			return fmt.Errorf("borrow threads of process %d: %w", l.pid, err)
		}
	}
	if err := l.hold(ctx); err != nil {
		l.letGo()
		return fmt.Errorf("borrow threads of process %d: %w", l.pid, err)
	}
	l.at("seized")
	if err := l.note(process); err != nil {
		l.letGo()
		return err
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

// note writes the file, of threads of which nothing has been changed yet.
func (l *loan) note(process *Process) error {
	saved := savedThreads{PID: l.pid, Instruction: l.instruction}
	for _, t := range l.threads {
		if t.state == ended {
			return fmt.Errorf("thread %d of process %d: %w", t.TID, l.pid, ErrGone)
		}
		switch t.stopSignal {
		case unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
		default:
			return fmt.Errorf("thread %d of process %d is not in the group-stop, and would run on if we were killed: send the process SIGSTOP first", t.TID, l.pid)
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
			err = unix.PtraceSetOptions(t.TID, unix.PTRACE_O_TRACESYSGOOD)
		}
		if errors.Is(err, unix.ESRCH) {
			err = ErrGone
		}
		if err != nil {
			return fmt.Errorf("read the registers of thread %d of process %d: %w", t.TID, l.pid, err)
		}
		saved.Threads = append(saved.Threads, t.savedThread)
	}
	if l.saved == "" {
		return nil
	}
	return saved.write(l.saved)
}
