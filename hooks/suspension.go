package hooks

import (
	"context"
	"time"

	"cucriu/cudackpt"
	"cucriu/internal/inject"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
	"cucriu/internal/timeline"
)

// suspension takes processes off their GPUs: it locks, stops, parks and checkpoints them.
// It is what a dump and [Hook.Suspend] share; [Hook.Lock] goes no further than the lock.
type suspension struct {
	*Hook
	root    int // of the tree; 0 if the processes were named
	driver  *cudackpt.Driver
	loading struct{ start, took time.Duration } // of the driver's library; start is since boot
	thawed  []proc.Freezer                      // thawed by us; the engine had frozen them
	members []journal.Member
	targets []*target
	// others are the processes without CUDA, which we have stopped.
	others       []*proc.Process
	parkedOthers map[int]*inject.Parked     // the parked threads of others, by pid
	tracer       *inject.Tracer             // lets stopped processes run while they are locked
	session      *session                   // nil until the journal is begun
	held         []map[cudackpt.UUID]uint64 // what NVML listed for each target when it was locked
	listed       bool                       // NVML has listed one of the processes since they were locked
	// onCheckpointed is called for each process as soon as its checkpoint is over; nil if
	// nobody waits for that.
	onCheckpointed func(context.Context, *target) error
	oomKills       []*proc.OOMCounter // in the control groups of the targets
}

// loadDriver opens the driver once.
func (s *suspension) loadDriver() (*cudackpt.Driver, error) {
	if s.driver != nil {
		return s.driver, nil
	}
	start := timeline.SinceBoot()
	driver, err := s.Host().CheckpointDriver()
	if err == nil {
		s.driver = driver
	}
	s.loading.start, s.loading.took = start, timeline.SinceBoot()-start
	return driver, err
}

// patienceForAll is the patience for the whole tree, or for the processes that were named.
func (s *suspension) patienceForAll() time.Duration {
	pids := pidsOf(s.targets)
	if s.root > 0 {
		if tree, err := proc.Tree(s.root); err == nil {
			pids = tree
		}
	}
	return s.patience(pids...)
}

func pidsOf(targets []*target) []int {
	pids := make([]int, len(targets))
	for i, t := range targets {
		pids[i] = t.PID
	}
	return pids
}
