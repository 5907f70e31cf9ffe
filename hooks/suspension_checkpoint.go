package hooks

import (
	"context"
	"errors"

	"cucriu/cudackpt"
	"cucriu/internal/inject"
	"cucriu/internal/proc"
)

// trace lets the restore threads run, and nothing else: the driver works through them. Before
// that it looks for what has come since the inspection: another process, too, may have begun to
// share memory.
func (s *suspension) trace(ctx context.Context) error {
	if err := s.lookAgain(); err != nil {
		return err
	}
	return parallel(s.targets, func(t *target) (err error) {
		if t.before, err = proc.ReadAddressSpace(t.PID); err != nil {
			return err
		}
		t.member.PrivateBefore = proc.Total(t.before.Private)
		tid, err := t.cuda.RestoreThreadID(ctx)
		if err != nil {
			return err
		}
		t.tracer = inject.NewTracer()
		if s.Config.FastLane.Prefault {
			t.prefault = &prefault{suspension: s, target: t, restoreThread: tid, left: t.member.StagedBytes()}
			return t.tracer.RunPopulating(tid, prefaultLeast, func(r proc.Range) bool { return t.prefault.begin(ctx, r) })
		}
		return t.tracer.Run(tid)
	})
}

// checkpoint moves the GPU state of every process into its memory.
func (s *suspension) checkpoint(ctx context.Context) error {
	deadline, cancel := context.WithTimeout(ctx, s.Config.Checkpoint.Timeout)
	defer cancel()
	return parallel(s.targets, func(t *target) error {
		if err := t.requireHeld(); err != nil {
			return err
		}
		err := s.session.spanOf(t.PID, "checkpoint", func() error { return t.cuda.Checkpoint(deadline) })
		if err := errors.Join(err, t.prefault.end(deadline)); err != nil {
			return err
		}
		if err := t.measureStaged(); err != nil {
			return err
		}
		if s.onCheckpointed == nil {
			return nil
		}
		return s.onCheckpointed(ctx, t)
	})
}

// release puts the restore threads back into the group-stop, for criu to seize.
func (s *suspension) release(ctx context.Context) error {
	return parallel(s.targets, func(t *target) error {
		return releaseThreads(ctx, t.tracer, []*target{t})
	})
}

// measureStaged takes the size of the staging memory for what a restore will take, where
// NVML did not tell. The size is what the process's memory has grown by since before the
// checkpoint, while none of the job's threads ran. On an H100 that was what NVML would have
// listed, contexts included, and 10 MiB more; it was nothing for a process without a
// context. Any GPU that the process sees may have to take all of it. measureStaged does
// nothing if more is known of the process, or if it was not seen before its checkpoint.
func (t *target) measureStaged() error {
	m := t.member
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
	if t.before.Mapped != nil {
		staged = max(staged, proc.Total(space.NewSince(t.before)))
	}
	m.MemoryBytes = make(map[cudackpt.UUID]uint64)
	for _, gpu := range m.GPUs {
		m.MemoryBytes[gpu.UUID] = staged
	}
	return nil
}
