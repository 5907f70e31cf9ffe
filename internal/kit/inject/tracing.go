package inject

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// tracing is an OS thread that traces. The kernel takes ptrace requests only from the
// thread that seized.
type tracing struct {
	requests chan func()
	done     chan struct{}
	over     bool           // the thread is to end; it alone uses this field and those below
	sigchld  chan os.Signal // the kernel announces every ptrace-stop by SIGCHLD
	tick     *time.Ticker   // in case a signal is missed
}

var errTracingEnded = errors.New("the threads have been released")

// start starts the OS thread. It polls whenever a tracee may have something to report, even
// when no request is being served: a thread that waits in a stop for us may keep others
// waiting.
func (t *tracing) start(poll func()) {
	t.requests, t.done = make(chan func()), make(chan struct{})
	t.sigchld, t.tick = make(chan os.Signal, 1), time.NewTicker(50*time.Millisecond)
	signal.Notify(t.sigchld, unix.SIGCHLD)
	go func() {
		defer close(t.done)
		defer signal.Stop(t.sigchld)
		defer t.tick.Stop()
		ownThread(func() {
			for !t.over {
				select {
				case request := <-t.requests:
					request()
				case <-t.sigchld:
					poll()
				case <-t.tick.C:
					poll()
				}
			}
		})
	}()
}

// do runs f on the tracing thread.
func (t *tracing) do(f func() error) error {
	reply := make(chan error, 1)
	select {
	case t.requests <- func() { reply <- f() }:
		return <-reply
	case <-t.done:
		return errTracingEnded
	}
}

// await waits, on the tracing thread, until a tracee may have something to report.
// signalled says that a SIGCHLD came; one signal may stand for several reports.
func (t *tracing) await(ctx context.Context) (signalled bool, err error) {
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-t.sigchld:
		return true, nil
	case <-t.tick.C:
		return false, nil
	}
}

// ownThread runs f on an OS thread of its own and waits until that thread has ended. The
// kernel then detaches from everything that the thread still traces.
func ownThread(f func()) {
	// The kernel has no event for the end of a thread before Linux 6.9.
	for tid := proc.OnOwnThread(f); proc.ThreadExists(os.Getpid(), tid); {
		time.Sleep(100 * time.Microsecond)
	}
}
