package migrate

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// pauseLimit gives a migration up if the job is paused for too long. The time that it takes to
// restore the job comes on top.
type pauseLimit struct {
	most   time.Duration // 0 is no limit
	giveUp context.CancelCauseFunc

	mu    sync.Mutex
	timer *time.Timer // while the job is paused
}

// begin says that the job is paused from now on, unless it did already.
func (l *pauseLimit) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.most > 0 && l.timer == nil {
		l.timer = time.AfterFunc(l.most, func() {
			l.giveUp(fmt.Errorf("the job has been paused for %v, the limit of --max-pause", l.most))
		})
	}
}

// end says that the job runs again, or that it is too late to give up.
func (l *pauseLimit) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}
