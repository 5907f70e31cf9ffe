package criuutil

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// loan is owned by the one OS thread that traces.
type loan struct {
	pid         int
	instruction uint64 // address of the one that enters the kernel
	saved       string // the file
	threads     []*borrowedThread
	at          func(point string)
	over        bool

	sigchld chan os.Signal // the kernel announces every ptrace-stop by SIGCHLD
	tick    *time.Ticker   // not to depend on the one signal
}

type borrowedThread struct {
	savedThread
	state      threadState
	stopSignal unix.Signal // with state held: that of the group-stop, or SIGTRAP if there is none
	// slice is what the thread advises on for the Madvise that is under way;
	// empty if that has been given up.
	slice Range
}

type threadState int

const (
	unseized threadState = iota
	awaited              // its next event stop is waited for
	held                 // in an event stop: whatever registers it is given there, the kernel acts on them
	called               // runs to the entry of our system call
	inside               // is in our system call
	returned             // in the stop at the exit of our system call
	ended
)

// serve ends when the loan is over.
func (l *loan) serve(requests <-chan func(), done chan<- struct{}) {
	defer close(done)
	l.sigchld = make(chan os.Signal, 1)
	signal.Notify(l.sigchld, unix.SIGCHLD)
	defer signal.Stop(l.sigchld)
	l.tick = time.NewTicker(50 * time.Millisecond)
	defer l.tick.Stop()
	ownThread(func() {
		for !l.over {
			select {
			case request := <-requests:
				request()
			case <-l.sigchld:
				l.poll() // a process that was killed is not gone for its parent before
			case <-l.tick.C: // its tracer has seen the end of each thread
				l.poll()
			}
		}
	})
}

// ownThread runs f on an OS thread that ends with it, whereupon the kernel
// detaches whatever it may still trace.
func ownThread(f func()) {
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		runtime.LockOSThread() // and never unlocked
		if unix.Gettid() == unix.Getpid() {
			ownThread(f) // the main thread would not end
			return
		}
		f()
	}()
	<-finished
}

// take seizes the threads, notes what they are, and blocks their signals.
func (l *loan) take(ctx context.Context) (err error) {
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
	if err := l.note(); err != nil {
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
func (l *loan) note() error {
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
		if err == nil {
			err = t.Mask.read(t.TID)
		}
		if err == nil {
			err = leaveRestartableSequence(l.pid, t.TID, &t.Registers)
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
	return saved.write(l.saved)
}

// memoryCall is a system call on a range of memory.
type memoryCall struct {
	name     string
	number   uint64
	argument int // beside the address and the size
}

func (c memoryCall) String() string { return fmt.Sprintf("%s(%d)", c.name, c.argument) }

// callAll has the threads make a call on every slice.
func (l *loan) callAll(ctx context.Context, slices []Range, what memoryCall) error {
	var failed error
	err := l.until(ctx, func() bool {
		busy := false
		for _, t := range l.threads {
			if t.state == returned && t.slice != (Range{}) {
				failed = firstOf(failed, l.result(t, what))
				t.slice = Range{}
			}
			if (t.state == held || t.state == returned) && len(slices) > 0 && failed == nil {
				t.slice, slices = slices[0], slices[1:]
				failed = l.call(t, what)
			}
			if t.state == ended {
				failed = firstOf(failed, fmt.Errorf("%v in thread %d of process %d: %w", what, t.TID, l.pid, ErrGone))
			}
			busy = busy || t.state == called || t.state == inside
		}
		return !busy
	})
	for _, t := range l.threads {
		t.slice = Range{}
	}
	if err != nil {
		return fmt.Errorf("%v in threads of process %d is not finished: %w", what, l.pid, err)
	}
	return failed
}

// call starts a system call in a thread that is in one of our stops.
func (l *loan) call(t *borrowedThread, what memoryCall) error {
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

func (l *loan) result(t *borrowedThread, what memoryCall) error {
	var regs registers
	err := regs.read(t.TID)
	if result := regs.result(); err == nil && result < 0 {
		err = unix.Errno(-result)
	}
	if errors.Is(err, unix.ESRCH) {
		err = ErrGone
	}
	if err != nil {
		return fmt.Errorf("%v of %#x-%#x in thread %d of process %d: %w", what, t.slice.Start, t.slice.End, t.TID, l.pid, err)
	}
	return nil
}

// giveBack is the end of a loan.
func (l *loan) giveBack(ctx context.Context) error {
	if err := l.hold(ctx); err != nil {
		return fmt.Errorf("return borrowed threads of process %d: %w", l.pid, err)
	}
	if err := l.putBack(); err != nil {
		return err
	}
	l.over = true
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
		if errors.Is(err, ErrGone) {
			t.state = ended
		} else if err != nil {
			l.letGo()
			return fmt.Errorf("return borrowed threads of process %d: %w", l.pid, err)
		}
	}
	err := l.hold(ctx)
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

// same fails with [ErrGone] if the thread is not the one that was saved.
func (l *loan) same(t *borrowedThread) error {
	stat, err := threadStat(l.pid, t.TID)
	if err == nil && uint64(stat.Starttime) != t.StartTime {
		err = fmt.Errorf("thread %d of process %d: %w: its tid now names another", t.TID, l.pid, ErrGone)
	}
	return err
}

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

// putBack makes every thread, all of which are held, what it was. The file is
// removed before they are let go of, so that it is never there when they run.
func (l *loan) putBack() error {
	for _, t := range l.threads {
		if err := l.restore(t); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("put back the registers of thread %d of process %d: %w", t.TID, l.pid, err)
		}
		l.at("put back")
	}
	l.at("all put back")
	if err := os.Remove(l.saved); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("process %d: its borrowed threads are whole but still noted as borrowed: %w", l.pid, err)
	}
	l.at("removed")
	l.letGo()
	return nil
}

func (l *loan) restore(t *borrowedThread) error {
	if t.state == ended {
		return nil
	}
	var now registers
	if err := now.read(t.TID); err != nil {
		return err
	}
	// Elsewhere the thread has its own registers: it has not been called yet, or
	// they have been put back already by one who was killed before he was done.
	switch now.pc() {
	case l.instruction, l.instruction + uint64(len(syscallInstruction)):
		if err := t.Registers.write(t.TID); err != nil {
			return err
		}
	}
	return t.Mask.write(t.TID)
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
	} else if _, gone := threadStat(l.pid, t.TID); errors.Is(gone, ErrGone) {
		return gone // a zombie gives EPERM
	}
	if errors.Is(err, unix.ESRCH) {
		err = ErrGone
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
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.sigchld:
		case <-l.tick.C: // SIGCHLDs coalesce
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
		_ = unix.PtraceCont(t.TID, toDeliver(status))
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

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
