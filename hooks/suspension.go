package hooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
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
	loading timeline.Phase // how long the driver's library took to load
	thawed  []proc.Freezer // thawed by us; the engine had frozen them
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

// take takes hold of processes. It fails if somebody else is at work on one of them.
func (s *suspension) take(ctx context.Context, pids []int) error {
	ctx, cancel := context.WithTimeout(ctx, s.patience(pids...))
	defer cancel()
	pids = slices.Compact(slices.Sorted(slices.Values(pids)))
	for _, pid := range pids {
		other, err := sessionOfProcess(s.Config.RunDir, pid)
		if err != nil || other != nil {
			return errors.Join(err, other.Conflict())
		}
	}
	for _, pid := range pids {
		process, err := s.inspectNamed(ctx, pid)
		if err != nil {
			return err
		}
		s.members = append(s.members, journal.Member{Process: *process})
	}
	var err error
	if s.targets, err = openMembers(s.driver, s.members); err != nil {
		return err
	}
	if len(s.targets) != len(s.members) {
		return errors.New("a process ended while it was inspected")
	}
	return nil
}

// inspectNamed inspects a process that must have CUDA and be reachable.
func (s *suspension) inspectNamed(ctx context.Context, pid int) (*preflight.Process, error) {
	frozen, err := proc.FrozenBy(pid)
	if err != nil {
		return nil, err
	}
	if len(frozen) > 0 {
		return nil, fmt.Errorf("process %d is frozen by control group %s, and the driver cannot reach it: thaw it first", pid, frozen[0].Dir)
	}
	if parked, err := inject.LooksParked(pid); err != nil || parked {
		if err == nil {
			err = fmt.Errorf("process %d was suspended, half dumped, or restored by a criu without cucriu-hook, and what its threads need to go on is not in this run directory (%s): name the one of its suspend with CUCRIU_RUN_DIR; "+
				"if it was restored, end it, and restore the image with cucriu restore, or with cucriu-hook as criu's action script", pid, s.Config.RunDir)
		}
		return nil, err
	}
	seen, err := preflight.InspectProcess(ctx, pid, s.loadDriver)
	if err == nil {
		err = seen.Findings.Err()
	}
	if err == nil && seen.Holder != nil {
		err = fmt.Errorf("process %d (%s) holds GPU devices and has no CUDA state, as a child that was forked from a CUDA process: name the CUDA process itself (cucriu status lists them)", pid, seen.Name)
	} else if err == nil && seen.Process == nil {
		err = fmt.Errorf("process %d uses no CUDA: name one that does (cucriu status lists them)", pid)
	}
	return seen.Process, err
}

// requireRunning refuses processes that do not run, within lock.timeout.
func (s *suspension) requireRunning(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, s.patienceForAll())
	defer cancel()
	return givenUp(ctx, statesOf(asking, s.targets, wantRunning))
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
	s.loading = timeline.Phase{Name: "load driver", By: s.by, Start: (start - s.begun).Seconds(), Seconds: (timeline.SinceBoot() - start).Seconds()}
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
