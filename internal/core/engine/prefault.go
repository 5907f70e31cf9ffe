package engine

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
)

// The driver maps its staging memory and has the kernel populate it with a single thread, in pages of 4
// KiB and at 4 GB/s: two thirds of the time of a checkpoint. Instead, stopped threads of the process
// make it ready, in huge pages and all at once, ahead of the driver, which meanwhile fills the memory
// from the front. This never changes what is in a page.

// prefaultLeast is the size of a mapping, in bytes, from which this pays.
const prefaultLeast = 16 << 20

// prefault makes the staging memory of one process ready. It does what it can: if it can do nothing,
// the driver finds its memory untouched.
type prefault struct {
	*Suspension
	target        *Target
	restoreThread int
	left          uint64 // bytes that the driver is still expected to map

	mu      sync.Mutex // guards what follows
	lent    *inject.Borrowed
	cancel  context.CancelFunc // of what is running
	running sync.WaitGroup
}

// begin begins to make a mapping ready, while the restore thread waits for it to return. It reports
// whether more mappings are expected.
func (p *prefault) begin(ctx context.Context, r proc.Range) (more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running.Wait()
	ctx, p.cancel = p.Config.Checkpoint.Within(ctx)
	if err := p.advise(ctx, r); err != nil {
		p.cancel()
		p.warn(err)
		return false
	}
	cancel := p.cancel
	p.running.Go(func() {
		defer cancel()
		err := p.Session.SpanOf(p.target.PID, "prefault", func() error {
			if err := p.Session.Failpoint(ctx, "dump.prefault"); err != nil {
				return err
			}
			return p.lent.Madvise(ctx, []proc.Range{r}, unix.MADV_POPULATE_WRITE)
		})
		if err != nil {
			p.warn(err)
		}
	})
	p.left -= min(p.left, r.Size())
	return p.left >= prefaultLeast
}

// advise has the kernel use huge pages for a mapping.
func (p *prefault) advise(ctx context.Context, r proc.Range) (err error) {
	if p.lent == nil {
		p.lent, err = Borrow(ctx, p.Session, p.target, p.CoresEach(), p.restoreThread, p.Session.BorrowedFile(p.target.PID))
		if err != nil {
			return err
		}
	}
	return ignoreEINVAL(p.lent.Madvise(ctx, []proc.Range{r}, unix.MADV_HUGEPAGE))
}

func (p *prefault) warn(err error) {
	if errors.Is(err, context.Canceled) { // whoever has cancelled it is told
		return
	}
	p.Log.Warn("the memory for the checkpoint could not be prefaulted by several threads; it takes longer", "pid", p.target.PID, "error", err)
}

// end waits until all is ready or ctx ends, and gives the threads back.
func (p *prefault) end(ctx context.Context) error {
	return p.without(ctx, func() error { return nil })
}

// without is end. While do runs, no thread is lent.
func (p *prefault) without(ctx context.Context, do func() error) error {
	if p == nil {
		return do()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lent != nil {
		defer context.AfterFunc(ctx, p.cancel)()
		p.running.Wait()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ReleaseTimeout)
		defer cancel()
		if err := p.lent.Return(ctx); err != nil {
			return err
		}
		p.lent = nil
	}
	return do()
}
