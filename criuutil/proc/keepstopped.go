package proc

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// KeepStopped waits until every thread of processes that were stopped is stopped
// again: a thread that a tracer has let go of falls back into the group-stop by
// itself, but if somebody has continued the process meanwhile, it is stopped anew.
// Processes that end meanwhile count as stopped.
func KeepStopped(ctx context.Context, procs ...*Process) error {
	const fallsBack = 20 * time.Millisecond // a thread that was let go of, in less
	for {
		soon, cancel := context.WithTimeout(ctx, fallsBack)
		err := WaitStopped(soon, procs...)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		// One SIGSTOP too many stays pending, and ends with the SIGCONT; criu
		// heeds neither.
		for _, p := range procs {
			if stopped, err := Stopped(p.PID); err != nil || stopped {
				continue // it has ended, or WaitStopped says what is wrong
			}
			if err := p.Signal(unix.SIGSTOP); err != nil && !errors.Is(err, ErrGone) {
				return err
			}
		}
	}
}
