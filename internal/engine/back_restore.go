package engine

import (
	"context"
	"errors"
	"sync"

	"cucriu/cudackpt"
	"cucriu/internal/inspect"
)

// memoryNeed returns how much GPU memory the restore of the checkpointed processes will take.
func (b *wayBack) memoryNeed(ctx context.Context) (inspect.MemoryNeed, error) {
	ctx, cancel := context.WithTimeout(ctx, b.Env.Config.Restore.Timeout)
	defer cancel()
	need := make(inspect.MemoryNeed)
	for _, t := range b.cuda {
		if t.lacksMemory() {
			need.Add(t.Member.MemoryBytes, t.Member.Pairs)
			continue
		}
		// A checkpoint or restore goes on by itself after the program that began it was killed. The
		// driver answers when it is through.
		state, err := t.CUDA.State(ctx)
		if err != nil {
			return nil, err
		}
		if state == cudackpt.StateCheckpointed {
			if err := t.measureStaged(); err != nil {
				return nil, err
			}
			need.Add(t.Member.MemoryBytes, t.Member.Pairs)
		}
	}
	return need, nil
}

// restore moves the GPU state of the checkpointed processes back, if the GPUs have the memory for all
// of them. While the driver works on the first process, the memory of the next is filled in.
func (b *wayBack) restore(ctx context.Context) error {
	need, err := b.memoryNeed(ctx)
	if err != nil {
		return err
	}
	room := sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(ctx, b.Env.Config.Restore.Timeout)
		defer cancel()
		return b.SpanOf(0, "free memory", func() error {
			if err := b.Failpoint(ctx, string(b.Kind)+".back.free memory"); err != nil {
				return err
			}
			return need.Require(ctx, b.driver)
		})
	})
	go room() // during the first fill: NVML takes 10 ms for each GPU of the host
	err = b.parallel(func(t *Target) error {
		if t.lacksMemory() {
			if err := (filling{b}).fill(ctx, t); err != nil {
				return err
			}
			if err := runRestoreThreads(ctx, b.tracer, []*Target{t}); err != nil {
				return err
			}
		}
		if room() != nil {
			return nil // returned once, below
		}
		ctx, cancel := context.WithTimeout(ctx, b.Env.Config.Restore.Timeout)
		defer cancel()
		state, err := t.CUDA.State(ctx)
		if err != nil || state == cudackpt.StateRunning || state == cudackpt.StateLocked {
			return err
		}
		return b.SpanOf(t.PID, "restore", func() error {
			return t.CUDA.Restore(ctx, cudackpt.RestoreOptions{Pairs: t.Member.Pairs})
		})
	})
	return errors.Join(room(), err)
}
