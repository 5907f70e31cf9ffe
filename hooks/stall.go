package hooks

import (
	"context"
	"fmt"
	"time"
)

// stall ends a context when something has not moved for too long: a copy may
// take as long as there is to copy, but not wait for ever for a disk that hangs. The
// time begins with the first move.
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

// moved begins the time anew.
func (s *stall) moved() { s.timer.Reset(s.patience) }

// end ends the context. moved may still be called.
func (s *stall) end(cause error) {
	s.cancel(cause)
	s.timer.Stop()
}

// progress of a copy is told of at every chunk. It lets the tests fail in the
// middle of it.
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
