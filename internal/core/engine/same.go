package engine

import (
	"context"
	"fmt"

	"cucriu/internal/core/agent"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/pages"
)

// A dump that is based on an earlier image of the same job has the library compare its memory with what it was then: by a
// hash of each slice, which the GPU makes. What is the same is neither copied to the host nor stored; it is in
// the earlier image. The journal names that ahead, and the watcher holds it open.

// compare tells the library what to find out.
func (t *Target) compare() error {
	c, base := t.Compare, imagedir.Out{}
	if t.Compare.Base != nil {
		base = *t.Compare.Base
	}
	return t.agent.Compare(c.Generation, base.Generation, base.Staging, c.CopyAll)
}

// noteOut notes where the memory is now, for the image and the next one.
func (t *Target) noteOut() error {
	status, err := t.agent.Status()
	if err == nil && t.Compare.Generation != 0 {
		t.Member.Out = &imagedir.Out{Generation: t.Compare.Generation, Staging: status.Staging}
	}
	return err
}

// Same returns what the library in a process has found to be the same as in the earlier image, and whether it has
// copied that all the same.
func (t *Target) Same() (same []agent.Same, copied bool, err error) {
	if t.agent == nil || t.Member.Base == nil {
		return nil, false, nil
	}
	return t.agent.Same()
}

// fillSame brings what was not copied to the host from the earlier image, if the files of this one were not needed.
func (b *wayBack) fillSame(ctx context.Context, t *Target) error {
	if t.filled {
		return nil
	}
	same, copied, err := t.Same()
	if err != nil || copied || len(same) == 0 {
		return err
	}
	base, err := session.OpenBase(&b.Record, t.Member)
	if err != nil {
		return fmt.Errorf("the image that the dump is based on: %w", err)
	}
	defer base.Close()
	ctx, stall := NewStall(ctx, b.Env.Config.Restore.Timeout)
	defer stall.End(context.Canceled)
	stall.Begin()
	return b.SpanOf(t.PID, "fill same", func() error {
		for _, s := range same {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			source := watchedSource{base.At(s.Now, s.Before), Progress{ctx, b.Session, stall, "filling-same"}}
			if err := pages.Fill(ctx, source, t.Process, coresFor(1)); err != nil {
				return err
			}
		}
		return nil
	})
}
