package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"cucriu/internal/core/session"
)

// Stall ends a context when copies are under way and nothing has moved for too long. A copy may take as
// long as there is something to copy, but must not wait for a disk that hangs.
type Stall struct {
	patience time.Duration
	timer    *time.Timer
	cancel   context.CancelCauseFunc

	mu     sync.Mutex
	copies int // under way
}

func NewStall(ctx context.Context, patience time.Duration) (context.Context, *Stall) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(patience, func() {
		cancel(fmt.Errorf("no data has been written or read for %v: %w", patience, context.DeadlineExceeded))
	})
	timer.Stop()
	return ctx, &Stall{patience: patience, timer: timer, cancel: cancel}
}

// Begin notes that a copy begins.
func (s *Stall) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copies++
	s.timer.Reset(s.patience)
}

// Done notes that a copy is over. Where no other is under way, time does not count: the next one may be
// waiting for a checkpoint.
func (s *Stall) Done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.copies--; s.copies == 0 {
		s.timer.Stop()
	}
}

// Moved starts the time anew.
func (s *Stall) Moved() { s.timer.Reset(s.patience) }

// End ends the context. Moved may still be called afterwards.
func (s *Stall) End(cause error) {
	s.cancel(cause)
	s.timer.Stop()
}

// Progress is told of every chunk of a copy. It lets the tests make the copy fail in the middle.
type Progress struct {
	Copying context.Context
	Session *session.Session
	Stall   *Stall
	Doing   string
}

func (p Progress) Chunk() error {
	p.Stall.Moved()
	return p.Session.Failpoint(p.Copying, string(p.Session.Kind)+"."+p.Doing)
}
