package proc

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// KeepStopped waits until every thread of processes that were stopped is stopped again. A
// thread that a tracer releases falls back into the group-stop by itself. If somebody has
// continued the process meanwhile, KeepStopped stops it again. A process that ends
// meanwhile counts as stopped.
func KeepStopped(ctx context.Context, procs ...*Process) error {
	const fallsBack = 20 * time.Millisecond // a released thread takes less than this
	for {
		soon, cancel := context.WithTimeout(ctx, fallsBack)
		err := WaitStopped(soon, procs...)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		// A surplus SIGSTOP stays pending until SIGCONT removes it. criu heeds neither.
		for _, p := range procs {
			if stopped, err := Stopped(p.PID); err != nil || stopped {
				continue // it has ended, or WaitStopped will report the error
			}
			if err := p.Signal(unix.SIGSTOP); err != nil && !errors.Is(err, ErrGone) {
				return err
			}
		}
	}
}
