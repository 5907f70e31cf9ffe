package hooks

import (
	"context"
	"errors"
	"sync"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
)

// memoryNeed is what those that are checkpointed will take of the GPUs' memory.
func (b *bringUp) memoryNeed(ctx context.Context) (preflight.MemoryNeed, error) {
	ctx, cancel := context.WithTimeout(ctx, b.hook.Config.Restore.Timeout)
	defer cancel()
	need := make(preflight.MemoryNeed)
	for _, t := range b.cuda {
		if t.lacksMemory() {
			need.Add(t.member.MemoryBytes, t.member.Pairs)
			continue
		}
		// A checkpoint or restore that a killed controller began goes on by
		// itself; the driver answers when it is through.
		state, err := t.cuda.State(ctx)
		if err != nil {
			return nil, err
		}
		if state == cudackpt.StateCheckpointed {
			if err := t.measureStaged(); err != nil {
				return nil, err
			}
			need.Add(t.member.MemoryBytes, t.member.Pairs)
		}
	}
	return need, nil
}

// restore moves the GPU state of those that are checkpointed back, if the GPUs
// have the memory for all of them. The driver works on the first while the memory
// of the next is filled in.
func (b *bringUp) restore(ctx context.Context) error {
	need, err := b.memoryNeed(ctx)
	if err != nil {
		return err
	}
	room := sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(ctx, b.hook.Config.Restore.Timeout)
		defer cancel()
		return b.span(0, "free memory", func() error {
			if err := b.failpoint(ctx, string(b.Kind)+".back.free memory"); err != nil {
				return err
			}
			return need.Require(ctx, b.driver)
		})
	})
	go room() // beside the first fill: NVML takes 10 ms for each GPU of the host
	err = b.parallel(func(t *target) error {
		if t.lacksMemory() {
			if err := b.fill(ctx, t); err != nil {
				return err
			}
			if err := runRestoreThreads(ctx, b.tracer, []*target{t}); err != nil {
				return err
			}
		}
		if room() != nil {
			return nil // told once, below
		}
		ctx, cancel := context.WithTimeout(ctx, b.hook.Config.Restore.Timeout)
		defer cancel()
		state, err := t.cuda.State(ctx)
		if err != nil || state == cudackpt.StateRunning || state == cudackpt.StateLocked {
			return err
		}
		return b.span(t.PID, "restore", func() error {
			return t.cuda.Restore(ctx, cudackpt.RestoreOptions{Pairs: t.member.Pairs})
		})
	})
	return errors.Join(room(), err)
}
