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
type Tracer struct{ tracees tracees }

// tracees is owned by its tracing OS thread.
type tracees struct {
	tracing
	tids []int
	// populating holds the threads whose mmap calls are watched, by tid.
	populating map[int]*populating
}

// NewTracer starts a tracer. Release ends it.
func NewTracer() *Tracer {
	t := new(Tracer)
	t.tracees.start(t.tracees.resumeStopped)
	return t
}

// Run lets threads run although their processes are stopped. None runs before all have been
// seized, because each thread needs a CPU to be seized.
func (t *Tracer) Run(tids ...int) error {
	return t.tracees.do(func() error {
		for _, tid := range tids {
			if err := t.tracees.seize(tid); err != nil {
				return err
			}
		}
		return nil
	})
}

// Release stops every thread again, detaches from it so that it falls back into the
// group-stop of its process, and ends the tracer. It succeeds for threads that have ended,
// and if it is called a second time.
func (t *Tracer) Release(ctx context.Context) error {
	err := t.tracees.do(func() error {
		t.tracees.over = true
		return t.tracees.releaseAll(ctx)
	})
	<-t.tracees.done
	if errors.Is(err, errTracingEnded) {
		return nil
	}
	return err
}

func (s *tracees) seize(tid int) error {
	if err := seize(tid); err != nil {
		return err
	}
	s.tids = append(s.tids, tid)
	return nil
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

// resumeStopped continues every tracee that has reported a stop: the group-stop in which it
// was seized, a later group-stop, or the arrival of a signal, which is then delivered.
func (s *tracees) resumeStopped() {
	alive := s.tids[:0]
	for _, tid := range s.tids {
		ended := false
		for {
			status, reported, err := waitNoHang(tid)
			if ended = err != nil || reported && !status.Stopped(); ended || !reported {
				break
			}
			s.resume(tid, status)
		}
		if !ended {
			alive = append(alive, tid)
		}
	}
	s.tids = alive
}

func (s *tracees) releaseAll(ctx context.Context) error {
	var errs []error
	for _, tid := range s.tids {
		_ = unix.PtraceInterrupt(tid) // all first, then wait: each needs a CPU to stop
	}
	for _, tid := range s.tids {
		if err := s.detach(ctx, tid); err != nil {
			errs = append(errs, fmt.Errorf("let go of thread %d: %w", tid, err))
		}
	}
	s.tids = nil
	return errors.Join(errs...)
}

// detach interrupts a running tracee, waits until it has stopped, and detaches
// from it. A signal that arrives first is delivered.
func (s *tracees) detach(ctx context.Context, tid int) error {
	if err := unix.PtraceInterrupt(tid); err != nil {
		return ignoreESRCH(err)
	}
	for {
		status, reported, err := waitNoHang(tid)
		switch {
		case err != nil || reported && !status.Stopped():
			return nil // it has ended
		case reported && isEventStop(status):
			return ignoreESRCH(unix.PtraceDetach(tid))
		case reported:
			s.populating[tid].putBack(tid, status)
			// Every stop cancels a pending interrupt.
			if err := unix.PtraceInterrupt(tid); err != nil {
				return ignoreESRCH(err)
			}
			if err := unix.PtraceCont(tid, toDeliver(status)); err != nil {
				return ignoreESRCH(err)
			}
		default:
			if _, err := s.await(ctx); err != nil {
				return fmt.Errorf("it does not stop: %w", err)
			}
		}
	}
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

func ignoreESRCH(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
