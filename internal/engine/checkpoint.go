package engine

import (
	"context"
	"errors"

	"cucriu/cudackpt"
	"cucriu/internal/inject"
	"cucriu/internal/proc"
)

// Trace lets the restore threads run, and nothing else. Before that it looks for what has come since
// the inspection: another process, too, may have begun to share memory.
func (s *Suspension) Trace(ctx context.Context) error {
	if err := s.lookAgain(); err != nil {
		return err
	}
	return Parallel(s.Targets, func(t *Target) (err error) {
		if t.Before, err = proc.ReadAddressSpace(t.PID); err != nil {
			return err
		}
		t.Member.PrivateBefore = proc.Total(t.Before.Private)
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
	deadline, cancel := context.WithTimeout(ctx, s.Config.Checkpoint.Timeout)
	defer cancel()
	return Parallel(s.Targets, func(t *Target) error {
		if err := t.requireHeld(); err != nil {
			return err
		}
		err := s.Session.SpanOf(t.PID, "checkpoint", func() error { return t.CUDA.Checkpoint(deadline) })
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
