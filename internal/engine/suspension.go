package engine

import (
	"context"
	"time"

	"cucriu/cudackpt"
	"cucriu/internal/inject"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
	"cucriu/internal/session"
	"cucriu/internal/timeline"
)

// Suspension takes processes off their GPUs: it locks, stops, parks and checkpoints them. It is what a
// dump and a suspend share; a lock by an operator goes no further than the lock.
type Suspension struct {
	*session.Env
	Root    int // of the tree; 0 if the processes were named
	Driver  *cudackpt.Driver
	Loading struct{ Start, Took time.Duration } // of the driver's library; start is since boot
	Thawed  []proc.Freezer                      // thawed by us; the engine had frozen them
	Members []journal.Member
	Targets []*Target
	// others are the processes without CUDA, which we have stopped.
	Others       []*proc.Process
	ParkedOthers map[int]*inject.Parked     // the parked threads of others, by pid
	tracer       *inject.Tracer             // lets stopped processes run while they are locked
	Session      *session.Session           // nil until the journal is begun
	held         []map[cudackpt.UUID]uint64 // what NVML listed for each target when it was locked
	Listed       bool                       // NVML has listed one of the processes since they were locked
	// onCheckpointed is called for each process as soon as its checkpoint is over; nil if nobody waits
	// for that.
	OnCheckpointed func(context.Context, *Target) error
	OOMKills       []*proc.OOMCounter // in the control groups of the targets
}

// LoadDriver opens the driver once.
func (s *Suspension) LoadDriver() (*cudackpt.Driver, error) {
	if s.Driver != nil {
		return s.Driver, nil
	}
	start := timeline.SinceBoot()
	driver, err := s.Host().CheckpointDriver()
	if err == nil {
		s.Driver = driver
	}
	s.Loading.Start, s.Loading.Took = start, timeline.SinceBoot()-start
	return driver, err
}

// PatienceForAll is the patience for the whole tree, or for the processes that were named.
func (s *Suspension) PatienceForAll() time.Duration {
	pids := PidsOf(s.Targets)
	if s.Root > 0 {
		if tree, err := proc.Tree(s.Root); err == nil {
			pids = tree
		}
	}
	return s.Patience(pids...)
}

func PidsOf(targets []*Target) []int {
	pids := make([]int, len(targets))
	for i, t := range targets {
		pids[i] = t.PID
	}
	return pids
}
