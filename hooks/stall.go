package hooks

import (
	"context"
	"fmt"
	"time"
)

// stall ends a context when nothing has moved for too long. A copy may take as long as
// there is something to copy, but it must not wait for ever for a disk that hangs. The time
// begins with the first move.
type stall struct {
	patience time.Duration
	timer    *time.Timer
	cancel   context.CancelCauseFunc
}

func newStall(ctx context.Context, patience time.Duration) (context.Context, *stall) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(patience, func() {
		cancel(fmt.Errorf("no data has been written or read for %v: %w", patience, context.DeadlineExceeded))
	})
	timer.Stop()
	return ctx, &stall{patience: patience, timer: timer, cancel: cancel}
}

// moved starts the time anew.
func (s *stall) moved() { s.timer.Reset(s.patience) }

// end ends the context. moved may still be called afterwards.
func (s *stall) end(cause error) {
	s.cancel(cause)
	s.timer.Stop()
}

// progress is told of every chunk of a copy. It lets the tests make the copy fail in the
// middle.
type progress struct {
	ctx     context.Context
	session *session
	stall   *stall
	doing   string
}

func (p progress) chunk() error {
	p.stall.moved()
	return p.session.failpoint(p.ctx, string(p.session.Kind)+"."+p.doing)
}
