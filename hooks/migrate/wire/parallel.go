package wire

import (
	"context"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Parallel sends files side by side, each in a goroutine of its own: the receiver's kernel lets
// only one write at a time into a file. A file may still grow while it is sent.
type Parallel struct {
	sender *Sender
	ctx    context.Context
	end    context.CancelCauseFunc
	group  *errgroup.Group
}

// Growing is a file that is sent.
type Growing struct {
	name    string
	reader  io.ReaderAt
	changed chan struct{}

	mutex    sync.Mutex
	size     int64 // that can be sent
	complete bool
}

// NewParallel returns a group of files. It ends when ctx does, or with the first failure.
func NewParallel(ctx context.Context, s *Sender) *Parallel {
	p := &Parallel{sender: s}
	ctx, p.end = context.WithCancelCause(ctx)
	p.group, p.ctx = errgroup.WithContext(ctx)
	return p
}

// Context ends once a file could not be sent. Its cause says why.
func (p *Parallel) Context() context.Context { return p.ctx }

// Add begins to send a file, of which nothing is there yet. It must stay readable until
// [Sender.Finish] returns.
func (p *Parallel) Add(name string, r io.ReaderAt) *Growing {
	g := &Growing{name: name, reader: r, changed: make(chan struct{}, 1)}
	p.group.Go(func() error { return p.send(g) })
	return g
}

// Wait waits until all files are complete and queued, and ends the group. Its error is that of the
// first failure. If ctx ends, so does the sending.
func (p *Parallel) Wait(ctx context.Context) error {
	defer p.end(nil)
	defer context.AfterFunc(ctx, func() { p.end(context.Cause(ctx)) })()
	return p.group.Wait()
}

// Grow says that so much of the file is there and will not change. It never waits.
func (g *Growing) Grow(size int64) { g.set(size, false) }

// Complete says how large the file is, all of which is there.
func (g *Growing) Complete(size int64) { g.set(size, true) }

func (g *Growing) set(size int64, complete bool) {
	g.mutex.Lock()
	g.size, g.complete = size, complete
	g.mutex.Unlock()
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

func (p *Parallel) send(g *Growing) error {
	for sent := int64(0); ; {
		g.mutex.Lock()
		size, complete := g.size, g.complete
		g.mutex.Unlock()
		if !complete {
			size -= size % chunkSize // no small pieces
		}
		switch {
		case sent < size:
			if err := p.sender.Range(p.ctx, g.name, g.reader, sent, size-sent); err != nil {
				return err
			}
			sent = size
		case complete:
			return p.sender.Close(p.ctx, g.name, size)
		default:
			select {
			case <-g.changed:
			case <-p.ctx.Done():
				return context.Cause(p.ctx)
			}
		}
	}
}
