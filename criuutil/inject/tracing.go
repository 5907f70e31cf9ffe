package inject

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// tracing is an OS thread that traces: the kernel takes ptrace requests only from
// the one that seized.
type tracing struct {
	requests chan func()
	done     chan struct{}
	over     bool           // of the thread, as what follows: it is to end
	sigchld  chan os.Signal // the kernel announces every ptrace-stop by SIGCHLD
	tick     *time.Ticker   // not to depend on the one signal
}

var errTracingEnded = errors.New("the threads have been let go of")

// start begins the thread. Whenever a tracee may have something to report, it
// polls: also with nothing to do, because a thread that waits in a stop for us
// may keep others waiting.
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

// do has the thread do something.
func (t *tracing) do(f func() error) error {
	reply := make(chan error, 1)
	select {
	case t.requests <- func() { reply <- f() }:
		return <-reply
	case <-t.done:
		return errTracingEnded
	}
}

// await waits, in the thread, until a tracee may have something to report: signalled
// says that one has, but SIGCHLDs coalesce.
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

// ownThread runs f on an OS thread of its own and waits for the end of that,
// with which the kernel detaches whatever it may still trace.
func ownThread(f func()) {
	tid := make(chan int)
	go func() {
		runtime.LockOSThread() // and not unlocked, so that it ends
		if unix.Gettid() == unix.Getpid() {
			ownThread(f) // the main thread would not end with its goroutine
			runtime.UnlockOSThread()
			tid <- 0
			return
		}
		f()
		tid <- unix.Gettid()
	}()
	// The kernel has no event for the end of a thread before Linux 6.9.
	for tid := <-tid; tid != 0 && proc.ThreadExists(os.Getpid(), tid); {
		time.Sleep(100 * time.Microsecond)
	}
}
