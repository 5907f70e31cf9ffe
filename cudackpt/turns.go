package cudackpt

import (
	"context"
	"sync"
)

// turns allows one driver call at a time to each process. A driver call cannot be interrupted:
// if its caller gives up, it is still under way, and a second call to the same target must not
// meet it half done. The zero turns is ready to use.
type turns struct {
	mu   sync.Mutex
	busy map[int]*turn // by pid; nvmlTurn for NVML
}

// turn is a call under way.
type turn struct {
	call string
	done chan struct{} // closed when the call has returned
}

// take waits until no call to pid is under way, and then registers call as the one that is. If
// ctx ends first, it returns the call that was in the way, or "".
func (t *turns) take(ctx context.Context, pid int, call string) (release func(), inTheWay string, err error) {
	for {
		if ctx.Err() != nil {
			return nil, inTheWay, whyOver(ctx)
		}
		t.mu.Lock()
		current, taken := t.busy[pid]
		if !taken {
			mine := &turn{call: call, done: make(chan struct{})}
			if t.busy == nil {
				t.busy = make(map[int]*turn)
			}
			t.busy[pid] = mine
			t.mu.Unlock()
			return func() { t.end(pid, mine) }, "", nil
		}
		t.mu.Unlock()
		inTheWay = current.call
		select {
		case <-current.done:
			inTheWay = ""
		case <-ctx.Done():
		}
	}
}

func (t *turns) end(pid int, mine *turn) {
	t.mu.Lock()
	delete(t.busy, pid)
	t.mu.Unlock()
	close(mine.done)
}

// do runs one blocking call to pid in a goroutine of its own, and waits for it within ctx. If
// do fails, nobody may look at the results of run.
func (t *turns) do(ctx context.Context, call string, pid int, run func() error) error {
	release, inTheWay, err := t.take(ctx, pid, call)
	if err != nil {
		return &InterruptedError{Call: call, PID: pid, InTheWay: inTheWay, Err: err}
	}
	finished := make(chan error, 1)
	go func() {
		err := run()
		release()
		finished <- err
	}()
	select {
	case err := <-finished:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-finished: // both happened at once, and what the driver said is worth more
		return err
	default:
		return &InterruptedError{Call: call, PID: pid, Started: true, Err: whyOver(ctx)}
	}
}
