package engine

import (
	"context"
	"fmt"
	"time"

	"cucriu/internal/session"
)

// Stall ends a context when nothing has moved for too long since the first move. A copy may take as
// long as there is something to copy, but must not wait for a disk that hangs.
type Stall struct {
	patience time.Duration
	timer    *time.Timer
	cancel   context.CancelCauseFunc
}

func NewStall(ctx context.Context, patience time.Duration) (context.Context, *Stall) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(patience, func() {
		cancel(fmt.Errorf("no data has been written or read for %v: %w", patience, context.DeadlineExceeded))
	})
	timer.Stop()
	return ctx, &Stall{patience: patience, timer: timer, cancel: cancel}
}

// Moved starts the time anew.
func (s *Stall) Moved() { s.timer.Reset(s.patience) }

// End ends the context. moved may still be called afterwards.
func (s *Stall) End(cause error) {
	s.cancel(cause)
	s.timer.Stop()
}

// Progress is told of every chunk of a copy. It lets the tests make the copy fail in the middle.
type Progress struct {
	ctx     context.Context
	session *session.Session
	stall   *Stall
	doing   string
}

func NewProgress(ctx context.Context, s *session.Session, stall *Stall, doing string) Progress {
	return Progress{ctx, s, stall, doing}
}

func (p Progress) Chunk() error {
	p.stall.Moved()
	return p.session.Failpoint(p.ctx, string(p.session.Kind)+"."+p.doing)
}
