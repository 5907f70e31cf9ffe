package engine

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/hooks/timeline"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
)

// Suspension takes processes off their GPUs: it locks, stops, parks and checkpoints them. It is what a
// dump and a suspend share; a lock by an operator goes no further than the lock.
type Suspension struct {
	*session.Env
	Root    int // of the tree; 0 if the processes were named
	Driver  *cudackpt.Driver
	Loading struct{ Start, Took time.Duration } // of the driver's library; start is since boot
	Thawed  []proc.Freezer                      // which the container engine had frozen
	Members []journal.Member
	Targets []*Target
	// Others are the processes without CUDA that were stopped for the dump.
	Others       []*proc.Process
	ParkedOthers map[int]*inject.Parked // the parked threads of Others, by pid
	tracer       *inject.Tracer         // lets stopped processes run while they are locked
	Session      *session.Session       // nil until the journal is begun
	Listed       bool                   // NVML has listed one of the processes since they were locked
	// OnCheckpointed is called for each process as soon as its checkpoint is over; nil if nobody waits
	// for that.
	OnCheckpointed func(context.Context, *Target) error
	// JudgeRoom judges the room for what the libraries have counted; nil if there is room for all memory.
	JudgeRoom func() (preflight.Findings, error)
	OOMKills  []*proc.OOMCounter // in the control groups of the targets
	lockCalls int                // how often the driver was told to lock a process
	patience  time.Duration      // see PatienceForAll; 0 before
	insist    time.Time          // until then no library is left out because a lock does not end
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

// PatienceForAll is the patience for the whole tree, or for the processes that were named. It counts them once, when
// they all run.
func (s *Suspension) PatienceForAll() time.Duration {
	if s.patience == 0 {
		pids := PidsOf(s.Targets)
		if s.Root > 0 {
			if tree, err := proc.Tree(s.Root); err == nil {
				pids = tree
			}
		}
		s.patience = s.Patience(pids...)
	}
	return s.patience
}

func PidsOf(targets []*Target) []int {
	pids := make([]int, len(targets))
	for i, t := range targets {
		pids[i] = t.PID
	}
	return pids
}

func (s *Suspension) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.PatienceForAll())
	defer cancel()
	if err := proc.SignalAll(unix.SIGSTOP, ProcessesOf(s.Targets)...); err != nil {
		return err
	}
	return s.AwaitStopped(ctx, ProcessesOf(s.Targets))
}

// AwaitStopped waits until processes are stopped.
func (s *Suspension) AwaitStopped(ctx context.Context, processes []*proc.Process) error {
	return proc.AwaitStopped(ctx, s.Others, processes...)
}

// Trace lets the restore threads run, and nothing else. Before that it looks for what has come since
// the inspection: another process, too, may have begun to share memory.
func (s *Suspension) Trace(ctx context.Context) error {
	if err := s.lookAgain(); err != nil {
		return err
	}
	return Parallel(s.Targets, func(t *Target) (err error) {
		if err := t.noteBefore(); err != nil {
			return err
		}
		tid, err := t.CUDA.RestoreThreadID(ctx)
		if err != nil {
			return err
		}
		t.Tracer = inject.NewTracer()
		if s.Config.FastLane.Prefault {
			t.prefault = &prefault{Suspension: s, target: t, restoreThread: tid, left: t.Member.StagedBytes()}
			return t.Tracer.RunPopulating(tid, prefaultLeast, func(r proc.Range) bool { return t.prefault.begin(ctx, r) })
		}
		return t.Tracer.Run(tid)
	})
}

// Checkpoint moves the GPU state of every process into its memory.
func (s *Suspension) Checkpoint(ctx context.Context) error {
	deadline, cancel := s.Config.Checkpoint.Within(ctx)
	defer cancel()
	return Parallel(s.Targets, func(t *Target) error {
		if err := t.requireHeld(); err != nil {
			return err
		}
		err := s.Session.SpanOf(t.PID, "checkpoint", func() error {
			return stepOut(deadline, s.Session, t, func() error { return t.CUDA.Checkpoint(deadline) })
		})
		if err := errors.Join(err, t.prefault.end(deadline)); err != nil {
			return err
		}
		if err := t.measureStaged(); err != nil {
			return err
		}
		if s.OnCheckpointed == nil {
			return nil
		}
		return s.OnCheckpointed(ctx, t)
	})
}

// Release puts the restore threads back into the group-stop, for criu to seize.
func (s *Suspension) Release(ctx context.Context) error {
	return Parallel(s.Targets, func(t *Target) error {
		return ReleaseThreads(ctx, t.Tracer, []*Target{t})
	})
}

// measureStaged takes the size of the staging memory for what a restore will take, where NVML did not
// tell: what the process's memory has grown by since before the checkpoint. On an H100 that was what
// NVML would have listed, and 10 MiB more. Any GPU that the process sees may have to take all of it.
func (t *Target) measureStaged() error {
	m := t.Member
	if m.MemoryBytes != nil || m.PrivateBefore == 0 {
		return nil
	}
	space, err := proc.ReadAddressSpace(m.PID)
	if err != nil {
		return err
	}
	// After a hook that was killed, only the sum is known.
	staged := proc.Total(space.Private)
	staged -= min(staged, m.PrivateBefore)
	if t.Before.Mapped != nil {
		staged = max(staged, proc.Total(space.NewSince(t.Before)))
	}
	m.MemoryBytes = make(map[cudackpt.UUID]uint64)
	for _, gpu := range m.GPUs {
		m.MemoryBytes[gpu.UUID] = staged
	}
	return nil
}
