package jobs

import (
	"math/rand/v2"
	"time"
)

const (
	retryFirst = 5 * time.Second  // how soon a checkpoint is tried again that could not be made
	leastEvery = 10 * time.Second // the shortest interval that Overhead chooses
	jitter     = 0.05             // so that many jobs do not write at the same time
)

// cost is what a checkpoint has taken.
type cost struct{ pause, total time.Duration }

// costs are those of the last checkpoints.
type costs []cost

const keepCosts = 5

func (c costs) add(last cost) costs {
	c = append(c, last)
	return c[max(0, len(c)-keepCosts):]
}

// expected is what the next checkpoint takes, as far as that can be known: the most of the last
// ones.
func (c costs) expected() (_ cost, known bool) {
	var most cost
	for _, one := range c {
		most = cost{max(most.pause, one.pause), max(most.total, one.total)}
	}
	return most, len(c) > 0
}

// interval is how long to wait for the next checkpoint, without jitter.
func (s *checkpointer) interval() time.Duration {
	expected, known := s.costs.expected()
	if s.Overhead > 0 && known {
		return max(time.Duration(float64(expected.pause)/s.Overhead), expected.total, leastEvery)
	}
	return s.Every
}

// untilNext is how long to wait for the next checkpoint, after one that was made or was not. One
// that failed is tried again soon, and then less and less often.
func (s *checkpointer) untilNext(err error) time.Duration {
	interval := s.interval()
	if err == nil {
		s.failures = 0
		return interval + time.Duration((2*rand.Float64()-1)*jitter*float64(interval))
	}
	s.failures++
	return min(interval, retryFirst<<min(s.failures-1, 10))
}

// tooLong reports whether the job would stand still for longer than it may.
func (s *checkpointer) tooLong() (time.Duration, bool) {
	expected, known := s.costs.expected()
	return expected.pause, known && s.MaxPause > 0 && expected.pause > s.MaxPause
}
