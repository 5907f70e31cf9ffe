package inject

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
)

// loan is threads that an OS thread of ours has seized, which alone uses it. They make system calls
// for us, or a [Tracer] lets them run.
type loan struct {
	tracing
	pid         int    // 0 of a Tracer, whose threads may be of several processes
	instruction uint64 // its address; it enters the kernel
	value       uint32 // what the word at that address holds: see pointAtWait
	saved       string // the file
	threads     []*borrowedThread
	parkedMask  signalMask // of a parked thread that is stepped
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
	reaped     bool         // waited for; until then a thread that has ended keeps its process from ending
	stopSignal unix.Signal  // if held: the signal of the group-stop, or SIGTRAP outside of one
	criuCode   []proc.Range // criu's code, if the thread was found in it
	// slice is the memory on which the thread is now making a call. It is empty if nobody
	// waits for that call any more.
	slice      proc.Range
	populating *populating // the mmap calls of a thread that runs; nil if they are not watched
}

type threadState int

const (
	unseized threadState = iota
	awaited              // we wait for its next event stop
	held                 // in an event stop, where the kernel acts on the registers that it is given
	called               // running to the entry of our system call
	inside               // in our system call
	returned             // in the stop at the exit of our system call
	leaving              // running until it has left criu's code
	running              // running its own code
	ended
)

// hold brings every thread into an event stop. Only there does the kernel check the
// registers for a system call to restart, so registers are put back only there.
func (l *loan) hold(ctx context.Context) error {
	err := l.until(ctx, func() bool {
		all := true
		for _, t := range l.threads {
			if t.state == running || t.state == returned {
				// The interrupt first: the thread stops again before it leaves the kernel.
				_ = unix.PtraceInterrupt(t.TID) // ESRCH: it was killed, which the next wait reports
				if t.state == returned {
					_ = unix.PtraceCont(t.TID, 0)
				}
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

// detach detaches from the threads that are held. From the others the kernel detaches when
// this OS thread ends.
func (l *loan) detach() {
	for _, t := range l.threads {
		if t.state == held {
			_ = unix.PtraceDetach(t.TID) // ESRCH: it was killed
		}
	}
}

// seize seizes a thread. One that is in the group-stop stops by being seized; the interrupt
// is for one that is not.
func (l *loan) seize(t *borrowedThread) error {
	err := seize(t.TID)
	if err == nil {
		t.state = awaited
		if err := l.same(t); err != nil {
			return err
		}
		err = unix.PtraceInterrupt(t.TID)
	} else if _, gone := proc.ThreadStat(l.pid, t.TID); errors.Is(gone, proc.ErrGone) {
		return gone // seizing a zombie fails with EPERM
	}
	if errors.Is(err, unix.ESRCH) {
		err = proc.ErrGone
	}
	return err
}

// same fails with [proc.ErrGone] if the thread is not the one that was saved.
func (l *loan) same(t *borrowedThread) error {
	stat, err := proc.ThreadStat(l.pid, t.TID)
	if err == nil && stat.Starttime != t.StartTime {
		err = fmt.Errorf("thread %d of process %d: %w: its tid now belongs to another thread", t.TID, l.pid, proc.ErrGone)
	}
	return err
}

// until follows the threads until wanted reports true or ctx ends.
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

// findEnded marks threads that have ended although the kernel has not reported it. The
// kernel reports the end of a process's first thread only when all its other threads have
// been reaped, and one of these may belong to another tracer that waits for us.
func (l *loan) findEnded() {
	for _, t := range l.threads {
		if t.state == unseized || t.state == ended {
			continue
		}
		if _, err := proc.ThreadStat(cmp.Or(l.pid, t.TID), t.TID); errors.Is(err, proc.ErrGone) {
			t.state = ended
		}
	}
}

// poll handles everything that the threads have reported.
func (l *loan) poll() {
	for _, t := range l.threads {
		for t.state != unseized && !t.reaped {
			status, reported, err := waitNoHang(t.TID)
			if err == nil && !reported {
				break
			}
			if err != nil || !status.Stopped() {
				t.state, t.reaped = ended, true
				break
			}
			l.stopped(t, status)
		}
	}
}

// stopped handles one stop of one thread.
func (l *loan) stopped(t *borrowedThread, status unix.WaitStatus) {
	switch {
	case t.state == awaited && isEventStop(status):
		t.state, t.stopSignal = held, status.StopSignal()
	case t.state == awaited:
		t.populating.putBack(t.TID, status)
		_ = unix.PtraceInterrupt(t.TID) // every stop cancels a pending interrupt
		_ = unix.PtraceCont(t.TID, toDeliver(status))
	case t.state == leaving:
		t.left(status)
	case t.state == running:
		t.resume(status)
	case t.state == called && isSyscallStop(status):
		l.at("entry")
		_ = unix.PtraceSyscall(t.TID, 0)
		t.state = inside
		l.at("inside")
	case t.state == inside && isSyscallStop(status):
		t.state = returned
		l.at("exit")
	default:
		// The thread takes part in a stop by SIGSTOP, which cannot be blocked, or in the
		// stop that a SIGCONT causes. It runs on all the same.
		_ = unix.PtraceSyscall(t.TID, toDeliver(status))
	}
}

// savedThreads is the content of the file that a borrower leaves for [ReturnThreads].
type savedThreads struct {
	PID int `json:"pid"`
	// Instruction is the address of the instruction with which the threads enter the
	// kernel.
	Instruction uint64        `json:"instruction"`
	Threads     []savedThread `json:"threads"`
}

// savedThread is a thread as it was before it was borrowed.
type savedThread struct {
	TID       int        `json:"tid"`
	StartTime uint64     `json:"start_time"` // of the thread, as [proc.Ident] has it
	Registers registers  `json:"registers"`
	Mask      signalMask `json:"mask"`
}

// threadsKind is volatile: the page cache outlives this program, and the threads do not outlive the page cache. It
// has no checksum, which would refuse them all if one is half written: see rewrite.
var threadsKind = records.Kind[savedThreads]{
	What: "record of borrowed threads", Remedy: "resume the job from its last image", Dense: true, Volatile: true,
	Check: func(s *savedThreads) error {
		if s.PID <= 0 || s.Instruction == 0 || len(s.Threads) == 0 {
			return errors.New("it is not complete")
		}
		return nil
	},
}

func (s savedThreads) write(path string) error { return s.writeAs(threadsKind, path) }

// rewrite is write for a file in which only the registers of a thread that is being stepped have
// changed. They are not believed until that thread is parked again, and take as much room as before. So on a full
// disk they are written over the old ones, and the others stay whole even if we are killed meanwhile.
func (s savedThreads) rewrite(path string) error {
	kind := threadsKind
	kind.InPlace = true
	return s.writeAs(kind, path)
}

func (s savedThreads) writeAs(kind records.Kind[savedThreads], path string) error {
	if err := kind.Write(path, s); err != nil {
		return fmt.Errorf("save the registers of process %d: %w", s.PID, err)
	}
	return nil
}
