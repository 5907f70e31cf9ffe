package inject

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Tracer lets single threads of stopped processes run while all their other
// threads stay in the group-stop. If the tracing process dies, even by
// SIGKILL, the kernel puts the threads back into the group-stop.
type Tracer struct{ tracees tracees }

// tracees is owned by the one OS thread that traces.
type tracees struct {
	tracing
	tids []int
	// populating are those whose mappings are watched.
	populating map[int]*populating
}

// NewTracer starts a tracer; Release ends it.
func NewTracer() *Tracer {
	t := new(Tracer)
	t.tracees.start(t.tracees.resumeStopped)
	return t
}

// Run lets threads run although their processes are stopped: none of them before
// all have been seized, because each needs a CPU for that.
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

// Release stops every thread again, lets go of it so that it falls back into
// the group-stop of its process, and ends the tracer. A thread that has ended
// is no error, and neither is a second Release.
func (t *Tracer) Release(ctx context.Context) error {
	err := t.tracees.do(func() error {
		t.tracees.over = true
		return t.tracees.release(ctx)
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

// resumeStopped continues every tracee that has reported a stop: the
// group-stop it was in when it was seized, one that came later, or a signal,
// which it is then given.
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

func (s *tracees) release(ctx context.Context) error {
	var errs []error
	for _, tid := range s.tids {
		_ = unix.PtraceInterrupt(tid) // all at once: each must get a CPU to stop on
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
			// Every stop takes back a pending interrupt.
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

// waitNoHang returns what a tracee has to report, if anything.
func waitNoHang(tid int) (status unix.WaitStatus, reported bool, err error) {
	for {
		got, err := unix.Wait4(tid, &status, unix.WNOHANG|unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return status, got == tid, err
		}
	}
}

// isEventStop tells the stops that PTRACE_INTERRUPT and a group-stop cause
// from the stop before the delivery of a signal.
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
