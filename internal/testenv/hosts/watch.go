package hosts

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	watchEvery = 5 * time.Millisecond
	// turns and turnsWithin tell two copies that run at once from one that moves: that many
	// times in that time, a tick on one host follows one on the other.
	turns       = 3
	turnsWithin = 500 * time.Millisecond
)

// Watch looks all the time whether two copies of a work tick at once. It does not look at
// the processes: while criu restores a copy, its processes look as if they ran.
type Watch struct {
	work *Job
	done chan struct{}
	wait sync.WaitGroup

	mu   sync.Mutex
	seen []string
}

// Watch begins to watch the work until [Watch.Stop] or the end of the test.
func (w *Job) Watch() *Watch {
	watch := &Watch{work: w, done: make(chan struct{})}
	watch.wait.Go(watch.run)
	w.pair.t.Cleanup(watch.end)
	return watch
}

func (watch *Watch) run() {
	last := make(map[*Host]string)
	var on *Host
	var turned []time.Time // when a tick came from the other host than that before
	for {
		select {
		case <-watch.done:
			return
		case <-time.After(watchEvery):
		}
		for _, h := range watch.work.pair.Hosts() {
			status := watch.status(h)
			if status == "" { // in a shared directory, the other host's
				continue
			}
			ticked := last[h] != "" && status != last[h]
			last[h] = status
			if !ticked || h == on {
				continue
			}
			on = h
			now := time.Now()
			turned = append(slices.DeleteFunc(turned, func(at time.Time) bool { return now.Sub(at) > turnsWithin }), now)
			if len(turned) >= turns {
				watch.mu.Lock()
				watch.seen = append(watch.seen, fmt.Sprint(watch.work.Copies()))
				watch.mu.Unlock()
				turned = nil
			}
		}
	}
}

// status returns what the work says on a host; "" if nothing.
func (watch *Watch) status(on *Host) string {
	s, err := watch.work.Status(on, 0)
	if err != nil {
		return ""
	}
	return fmt.Sprint(s.PID, s.Tick)
}

// Twice returns how often two copies have been seen.
func (watch *Watch) Twice() int {
	watch.mu.Lock()
	defer watch.mu.Unlock()
	return len(watch.seen)
}

func (watch *Watch) end() {
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
	watch.end()
	if n := watch.Twice(); n > 0 {
		watch.work.pair.t.Errorf("two copies of the work ran at once, %d times: %s", n, watch.seen[0])
	}
}
