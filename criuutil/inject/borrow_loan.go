package inject

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// loan is owned by the one OS thread that traces.
type loan struct {
	tracing
	pid         int
	instruction uint64 // address of the one that enters the kernel
	value       uint32 // what is at its word: see pointAtWait
	saved       string // the file
	threads     []*borrowedThread
	at          func(point string)
}

func startLoan(of savedThreads, saved string, at func(string)) *loan {
	l := &loan{pid: of.PID, instruction: of.Instruction, saved: saved, at: at}
	for _, thread := range of.Threads {
		l.threads = append(l.threads, &borrowedThread{savedThread: thread})
	}
	l.start(l.poll)
	return l
}

type borrowedThread struct {
	savedThread
	state      threadState
	stopSignal unix.Signal  // with state held: that of the group-stop, or SIGTRAP if there is none
	criuCode   []proc.Range // in which the thread was found, if it was
	// slice is what the thread advises on for the Madvise that is under way;
	// empty if that has been given up.
	slice proc.Range
}

type threadState int

const (
	unseized threadState = iota
	awaited              // its next event stop is waited for
	held                 // in an event stop: whatever registers it is given there, the kernel acts on them
	called               // runs to the entry of our system call
	inside               // is in our system call
	returned             // in the stop at the exit of our system call
	leaving              // runs until it has left criu's code
	ended
)

// hold brings every thread into an event stop. Only there does the kernel look
// at the registers for a call to restart, so only there are they put back.
func (l *loan) hold(ctx context.Context) error {
	err := l.until(ctx, func() bool {
		all := true
		for _, t := range l.threads {
			if t.state == returned {
				// The interrupt first: the thread stops again before it leaves the kernel.
				_ = unix.PtraceInterrupt(t.TID) // ESRCH: it was killed, and the next wait says so
				_ = unix.PtraceCont(t.TID, 0)
				t.state = awaited
			}
			all = all && (t.state == held || t.state == ended)
		}
		return all
	})
	if err != nil {
		return fmt.Errorf("a thread does not stop (a long system call?): %w", err)
	}
	return nil
}

// letGo detaches from the threads that are held. From others the kernel
// detaches when this OS thread ends.
func (l *loan) letGo() {
	for _, t := range l.threads {
		if t.state == held {
			_ = unix.PtraceDetach(t.TID) // ESRCH: it was killed
		}
	}
}

// seize takes hold of a thread. The interrupt is for one that is not in the
// group-stop, which stops by being seized.
func (l *loan) seize(t *borrowedThread) error {
	err := seize(t.TID)
	if err == nil {
		t.state = awaited
		if err := l.same(t); err != nil {
			return err
		}
		err = unix.PtraceInterrupt(t.TID)
	} else if _, gone := proc.ThreadStat(l.pid, t.TID); errors.Is(gone, proc.ErrGone) {
		return gone // a zombie gives EPERM
	}
	if errors.Is(err, unix.ESRCH) {
		err = proc.ErrGone
	}
	return err
}

// same fails with [proc.ErrGone] if the thread is not the one that was saved.
func (l *loan) same(t *borrowedThread) error {
	stat, err := proc.ThreadStat(l.pid, t.TID)
	if err == nil && uint64(stat.Starttime) != t.StartTime {
		err = fmt.Errorf("thread %d of process %d: %w: its tid now names another", t.TID, l.pid, proc.ErrGone)
	}
	return err
}

// until follows the threads until they are as wanted, or ctx ends.
func (l *loan) until(ctx context.Context, wanted func() bool) error {
	for {
		l.poll()
		if wanted() {
			return nil
		}
		signalled, err := l.await(ctx)
		if err != nil {
			return err
		}
		if !signalled {
			l.findEnded()
		}
	}
}

// findEnded takes notice of threads of whose end the kernel has not told. That of a
// process's first thread it tells when all others are reaped, and one of these may
// be another tracer's, which waits for us.
func (l *loan) findEnded() {
	for _, t := range l.threads {
		if t.state == unseized || t.state == ended {
			continue
		}
		if _, err := proc.ThreadStat(l.pid, t.TID); errors.Is(err, proc.ErrGone) {
			t.state = ended
		}
	}
}

// poll takes notice of what the threads have reported.
func (l *loan) poll() {
	for _, t := range l.threads {
		for t.state != unseized && t.state != ended {
			status, reported, err := waitNoHang(t.TID)
			if err == nil && !reported {
				break
			}
			if err != nil || !status.Stopped() {
				t.state = ended
				break
			}
			l.stopped(t, status)
		}
	}
}

// stopped follows one thread through its stops.
func (l *loan) stopped(t *borrowedThread, status unix.WaitStatus) {
	switch {
	case t.state == awaited && isEventStop(status):
		t.state, t.stopSignal = held, status.StopSignal()
	case t.state == awaited:
		_ = unix.PtraceInterrupt(t.TID) // which every stop takes back
		_ = unix.PtraceCont(t.TID, toDeliver(status))
	case t.state == leaving:
		t.left(status)
	case t.state == called && isSyscallStop(status):
		l.at("entry")
		_ = unix.PtraceSyscall(t.TID, 0)
		t.state = inside
		l.at("inside")
	case t.state == inside && isSyscallStop(status):
		t.state = returned
		l.at("exit")
	default:
		// SIGSTOP, which cannot be blocked, or the stop of a SIGCONT: the thread
		// takes part and runs on all the same.
		_ = unix.PtraceSyscall(t.TID, toDeliver(status))
	}
}
