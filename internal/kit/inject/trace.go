package inject

import (
	"context"
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// Tracer lets single threads of stopped processes run while all their other threads stay in
// the group-stop. If the tracing process dies, even by SIGKILL, the threads fall back into
// the group-stop.
type Tracer struct{ loan *loan }

// NewTracer starts a tracer. Release ends it.
func NewTracer() *Tracer { return &Tracer{startLoan(savedThreads{}, "", func(string) {})} }

// Run lets threads run although their processes are stopped. None runs before all have been
// seized, because each thread needs a CPU to be seized.
func (t *Tracer) Run(tids ...int) error {
	return t.loan.do(func() error {
		for _, tid := range tids {
			if err := t.loan.run(tid, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// run seizes a thread of any process, which runs as soon as it has reported its stop.
func (l *loan) run(tid int, populating *populating) error {
	if err := seize(tid); err != nil {
		return err
	}
	l.threads = append(l.threads, &borrowedThread{savedThread: savedThread{TID: tid}, state: running, populating: populating})
	return nil
}

// Release stops every thread again, detaches from it so that it falls back into the
// group-stop of its process, and ends the tracer. It succeeds for threads that have ended,
// and if it is called a second time.
func (t *Tracer) Release(ctx context.Context) error {
	l := t.loan
	err := l.do(func() error {
		defer l.detach()
		l.over = true
		return l.hold(ctx)
	})
	<-l.done
	if errors.Is(err, errTracingEnded) {
		return nil
	}
	return err
}

// seize makes the calling OS thread the tracer of a thread.
func seize(tid int) error {
	if err := unix.PtraceSeize(tid); err != nil {
		hint := ""
		if errors.Is(err, unix.EPERM) {
			hint = " (another tracer such as a debugger, or no CAP_SYS_PTRACE)"
		}
		return fmt.Errorf("PTRACE_SEIZE of thread %d: %w%s", tid, err, hint)
	}
	return nil
}

// waitNoHang returns what a tracee has reported, if anything.
func waitNoHang(tid int) (status unix.WaitStatus, reported bool, err error) {
	for {
		got, err := unix.Wait4(tid, &status, unix.WNOHANG|unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return status, got == tid, err
		}
	}
}

// isEventStop reports whether PTRACE_INTERRUPT or a group-stop caused the stop, rather than
// a signal that is about to be delivered.
func isEventStop(status unix.WaitStatus) bool {
	return int(status)>>16 == unix.PTRACE_EVENT_STOP
}

func toDeliver(status unix.WaitStatus) int {
	if isEventStop(status) || isSyscallStop(status) {
		return 0
	}
	return int(status.StopSignal())
}

// populating follows the system calls of a thread that is about to map memory and have the
// kernel populate it at once (mmap with MAP_POPULATE). The kernel would do that page by
// page in this one thread.
type populating struct {
	least    uint64 // bytes, of a mapping that is taken over
	populate func(proc.Range) (more bool)

	begun  bool   // the ptrace options are set
	inside bool   // in a system call
	flags  uint64 // the flags that the thread passed, if its mmap is one that we changed; else 0
	over   bool
}

// RunPopulating is Run for a thread that is going to map memory with MAP_POPULATE. A
// private anonymous mapping of at least least bytes is made without that flag. The thread
// then waits while populate makes the memory ready, by whatever means. populate returns
// whether more such mappings are to come. If it leaves pages untouched, the thread finds
// them unpopulated, which costs it only time.
//
// If the tracing process is killed meanwhile, the thread falls back into the group-stop,
// and the mapping exists.
func (t *Tracer) RunPopulating(tid int, least uint64, populate func(proc.Range) (more bool)) error {
	return t.loan.do(func() error { return t.loan.run(tid, &populating{least: least, populate: populate}) })
}

// resume continues a thread that runs its own code and has reported a stop: the group-stop in
// which it was seized, a later one, or the arrival of a signal, which is then delivered.
func (t *borrowedThread) resume(status unix.WaitStatus) {
	tid, p := t.TID, t.populating
	if p == nil || p.over {
		_ = unix.PtraceCont(tid, toDeliver(status)) // ESRCH: it was killed, which the next wait reports
		return
	}
	if !p.begun {
		p.begun = unix.PtraceSetOptions(tid, unix.PTRACE_O_TRACESYSGOOD) == nil
	}
	if isSyscallStop(status) {
		p.inside = !p.inside
		if p.inside {
			p.entry(tid)
		} else {
			p.exit(tid)
		}
	}
	_ = unix.PtraceSyscall(tid, toDeliver(status))
}

// entry removes MAP_POPULATE from a call that has it.
func (p *populating) entry(tid int) {
	var regs registers
	if regs.read(tid) != nil || regs.number() != unix.SYS_MMAP {
		return
	}
	const wanted = unix.MAP_POPULATE | unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	flags := regs.argument(3)
	if flags&wanted != wanted || regs.argument(1) < p.least {
		return
	}
	regs.setArgument(3, flags&^unix.MAP_POPULATE)
	if regs.write(tid) == nil {
		p.flags = flags
	}
}

// exit has populate make the new mapping ready.
func (p *populating) exit(tid int) {
	if p.flags == 0 {
		return
	}
	regs, err := p.restore(tid)
	start, size := uint64(regs.result()), regs.argument(1)
	if err != nil || regs.result() < 0 || size > math.MaxUint64-start {
		return
	}
	page := uint64(unix.Getpagesize())
	p.over = !p.populate(proc.Range{Start: start, End: start + (size+page-1)/page*page})
}

// restore gives a thread back the flags that it passed: a program expects a system call to
// leave its arguments unchanged.
func (p *populating) restore(tid int) (regs registers, err error) {
	if err := regs.read(tid); err != nil {
		return regs, err
	}
	regs.setArgument(3, p.flags)
	p.flags = 0
	return regs, regs.write(tid)
}

// putBack does the same for a thread that is released in the middle of its call.
func (p *populating) putBack(tid int, status unix.WaitStatus) {
	if p != nil && p.flags != 0 && isSyscallStop(status) {
		_, _ = p.restore(tid) // ESRCH: it was killed
	}
}
