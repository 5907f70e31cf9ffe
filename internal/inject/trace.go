package inject

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
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
		defer l.letGo()
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
