package jobs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"cucriu/hooks"
	"cucriu/internal/jobs/ready"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/quote"
)

// probes are looks whether the job is ready. None that connects is under way while the job is dumped: its connection
// would be in the image. The others may hang, as on a disk that does, and no dump waits for them.
type probes struct {
	sync.RWMutex // locked for writing while the job is dumped
	until        atomic.Pointer[period]
}

// period is a time for looks. Its end ends those that are under way.
type period struct {
	context.Context
	end context.CancelFunc
}

func (p *probes) renew() {
	ctx, end := context.WithCancel(context.Background())
	p.until.Store(&period{ctx, end})
}

// cut ends the looks that are under way. There are no others until over is called.
func (p *probes) cut(ctx context.Context) (over func(), err error) {
	p.until.Load().end()
	defer p.renew()
	for !p.TryLock() {
		if err := wait(ctx, cutLook); err != nil {
			return nil, err
		}
	}
	return p.Unlock, nil
}

func (p *probes) look(ctx context.Context, probe *ready.Probe) error {
	if !probe.Connects() {
		return probe.Met(ctx)
	}
	p.RLock()
	defer p.RUnlock()
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(p.until.Load(), end)()
	return probe.Met(ctx)
}

func newProbes() *probes {
	p := new(probes)
	p.renew()
	return p
}

// endedError says that a job has ended before it was ready.
type endedError string

func (e endedError) Error() string        { return string(e) }
func (e endedError) Is(target error) bool { return target == hooks.ErrEnded }

func endedBefore(name, when string) error {
	return endedError(fmt.Sprintf("%s has ended before %s was met", name, quote.Name(when)))
}

const (
	cutLook   = 10 * time.Millisecond
	readyLook = 250 * time.Millisecond
	readySay  = 10 * time.Second
	maxWhy    = 200 // characters of what a job answers
)

// awaitReady waits until the job that runs is ready, and returns the first process of its sandbox. say is told what is
// lacking.
func (s *core) awaitReady(ctx context.Context, when ready.Condition, say func(why string)) (of *proc.Ident, err error) {
	probe := ready.Probe{Condition: when}
	defer probe.Close()
	why := "the job does not run yet"
	for said := (time.Time{}); ; {
		switch now := s.status.known(); {
		case of != nil && (now.Init == nil || *now.Init != *of):
			return nil, endedBefore(s.name, when.String())
		case now.Init != nil && now.State != StateBegins:
			of, probe.PID, probe.Output, probe.From = now.Init, now.Init.PID, s.outputPath(), now.OutputFrom
			err := s.probes.look(ctx, &probe)
			if err == nil {
				return of, nil
			}
			if ctx.Err() == nil && !errors.Is(err, context.Canceled) {
				text := []rune(quote.Line(err.Error()))
				why = string(text[:min(maxWhy, len(text))])
			}
			if time.Since(said) > readySay {
				said = time.Now()
				say(fmt.Sprintf("waiting for %s: %s", quote.Name(when.String()), why))
			}
		}
		if err := wait(ctx, readyLook); err != nil {
			return nil, fmt.Errorf("%w: %s", err, why)
		}
	}
}

// serveWhen waits until the job is ready for what is asked.
func (c *control) serveWhen(ctx context.Context, a *asked) error {
	when, err := ready.Parse(a.When)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go func() {
		select {
		case <-ctx.Done():
		case <-c.over:
			end(endedError(fmt.Sprintf("%s has ended, or is about to, before %s was met", c.name, quote.Name(a.When))))
		}
	}()
	if a.Timeout > 0 {
		late := fmt.Errorf("%s: %s was not met within --timeout %v", c.name, quote.Name(a.When), a.Timeout)
		var over func()
		ctx, over = context.WithTimeoutCause(ctx, a.Timeout, late)
		defer over()
	}
	a.of, err = c.awaitReady(ctx, when, func(why string) { a.say(why, 0) })
	return err
}

// awaitFirst has the first checkpoint of a job made once it is ready.
func (s *supervisor) awaitFirst(ctx context.Context) {
	defer s.waitsForFirst.Add(-1)
	last := ""
	inform := func(why string) {
		if why != last {
			last = why
			s.inform("the first checkpoint is " + why)
		}
	}
	for try := 0; s.status.newest() == nil; try++ {
		if _, err := s.awaitReady(ctx, s.CheckpointWhen, inform); err != nil || ctx.Err() != nil {
			return
		}
		select {
		case s.ready <- struct{}{}:
		case <-ctx.Done():
		}
		_ = wait(ctx, retryFirst<<min(try, maxRetries)) // for its end, or to try again
	}
}

// isScheduled reports whether checkpoints are made on a schedule now.
func (s *supervisor) isScheduled() bool {
	return s.Every > 0 && !(s.waitsForFirst.Load() > 0 && s.status.newest() == nil)
}
