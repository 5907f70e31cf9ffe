package hosts

import (
	"fmt"
	"sync"
	"time"
)

// watchEvery is how often a [Watch] looks.
const watchEvery = 10 * time.Millisecond

// Watch looks all the time whether two copies of a work run at once.
type Watch struct {
	work *Work
	done chan struct{}
	wait sync.WaitGroup

	mu   sync.Mutex
	seen []string
}

// Watch begins to watch the work until [Watch.Stop] or the end of the test.
func (w *Work) Watch() *Watch {
	watch := &Watch{work: w, done: make(chan struct{})}
	watch.wait.Go(func() {
		for {
			select {
			case <-watch.done:
				return
			case <-time.After(watchEvery):
			}
			if running := w.running(); len(running) > 1 {
				watch.mu.Lock()
				watch.seen = append(watch.seen, fmt.Sprint(running))
				watch.mu.Unlock()
			}
		}
	})
	w.pair.t.Cleanup(watch.stop)
	return watch
}

// running lists the copies that run, all of them at the moment when the last was found.
func (w *Work) running() []Process {
	var found, still []Process
	for _, p := range w.Copies() {
		// A child that criu restores, or that outlives its root for a moment, is no copy.
		if p.PID == w.PID && p.Held() == "" {
			found = append(found, p)
		}
	}
	for _, p := range found {
		if now, ok := p.Host.process(p.Outer); ok && now.Held() == "" && !now.dying() && now.has(workVariable+"="+w.id) {
			still = append(still, p)
		}
	}
	return still
}

// count returns how often two copies have been seen.
func (watch *Watch) count() int {
	watch.mu.Lock()
	defer watch.mu.Unlock()
	return len(watch.seen)
}

func (watch *Watch) stop() {
	select {
	case <-watch.done:
	default:
		close(watch.done)
	}
	watch.wait.Wait()
}

// Stop ends the watch, and fails the test if two copies have run at once.
func (watch *Watch) Stop() {
	watch.work.pair.t.Helper()
	watch.stop()
	if n := watch.count(); n > 0 {
		watch.work.pair.t.Errorf("two copies of the work ran at once, %d times: %s", n, watch.seen[0])
	}
}
