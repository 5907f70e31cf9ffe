package hooks

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"time"

	"cucriu/cudackpt"
	"cucriu/hooks/config"
	"cucriu/internal/inject"
	"cucriu/internal/journal"
	"cucriu/internal/pages"
	"cucriu/internal/proc"
)

// lane is one process's way around criu.
type lane struct {
	output  pages.Output
	ranges  []proc.Range  // the staging memory
	copied  chan struct{} // closed when the copy is over; nil before it begins
	listing pages.Listing
	err     error // of the copy
	lent    *inject.Borrowed
}

// stagingLeast is the least size, in bytes, of a mapping that is taken for staging memory.
// What the restore thread may have mapped for itself meanwhile is smaller, and must stay.
const stagingLeast = 1 << 20

// copies are the copies under way. They may last as long as the files take, but they end if
// the files take no more data. When one fails, the others end, too.
type copies struct {
	ctx   context.Context
	stall *stall // nil before the first
}

func (c *copies) begin(ctx context.Context, patience time.Duration) {
	c.ctx, c.stall = newStall(ctx, patience)
}

// checkpointAndCopy checkpoints the processes. It copies out the memory of the first while
// the checkpoints of the others go on.
func (d *dump) checkpointAndCopy(ctx context.Context) error {
	d.copies.begin(ctx, d.Config.Checkpoint.Timeout)
	return d.checkpoint(ctx)
}

// stopCopies ends the copies and waits for their end, but not for ever: a copy that hangs
// in a write only reads the processes' memory.
func (d *dump) stopCopies() {
	if d.copies.stall == nil {
		return
	}
	d.copies.stall.end(context.Canceled)
	patience := time.After(releaseTimeout)
	for _, t := range d.inLane() {
		if t.lane.copied == nil {
			continue
		}
		select {
		case <-t.lane.copied:
		case <-patience:
			return
		}
	}
}

// closeImage closes what the dump has open of the image. criu and the watcher keep the
// directory open.
func (d *dump) closeImage() {
	for _, t := range d.inLane() {
		t.lane.output.Close()
	}
	if d.claimed != nil {
		d.claimed.Close()
	}
}

// planPages names the files of the fast lane, for the journal. A run that comes after us
// removes them by these names.
func (d *dump) planPages() error {
	if d.Config.Pages != config.Fast || d.criu.PagesElsewhere {
		return nil
	}
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return err
	}
	fd := journal.FirstWatcherFD
	for _, t := range d.targets {
		t.member.Pages = &journal.MemberPages{Listing: pages.NewListing(hex.EncodeToString(random[:]), d.coresEach()), WatcherFD: fd}
		fd += t.member.Pages.Listing.Files()
	}
	return nil
}

// createPages creates the files, empty, before any process is touched: the watcher is to
// hold them open from then on.
func (d *dump) createPages() error {
	if d.store = d.stage.Pages; d.store == nil {
		d.store = pages.Files{Dir: d.imageDir, SyncAlong: d.syncs(), Written: d.stage.Written}
	}
	for _, t := range d.targets {
		if t.member.Pages == nil {
			continue
		}
		output, err := d.store.Create(t.member.ImagePID, t.member.Pages.Listing)
		if err != nil {
			return err
		}
		t.lane = &lane{output: output}
		if d.Config.FastLane.Compress == pages.Raw {
			output.Reserve(expectedBytes(t.member.MemoryBytes))
		}
		// The way back reads what the watcher holds, or files in the image directory.
		if len(output.Files()) != t.member.Pages.Listing.Files() {
			return errors.New("the store of the pages keeps no files open from which the job could be brought back if the dump fails")
		}
	}
	return d.session.failpoint(context.Background(), "dump.created")
}

// expectedBytes is how much memory a process will have to be copied out, if that can be told.
func expectedBytes(memory map[cudackpt.UUID]uint64) int64 {
	var sum uint64
	for _, bytes := range memory {
		if bytes < cudackpt.UnknownMemory {
			sum += bytes
		}
	}
	return int64(min(sum, math.MaxInt64/2))
}

// coresEach is how many threads work for each process. One process gets all cores. Several
// processes together get twice as many threads, because they do not begin together.
func (s *suspension) coresEach() int { return coresFor(len(s.targets)) }

// mostCores is the largest number of threads that gain something for one process. A fill by
// 8, 16 and 32 threads was measured at 15, 23 and 31 GB/s.
const mostCores = 32

func coresFor(processes int) int {
	cores := runtime.NumCPU()
	return min(cores, mostCores, max(2, 2*cores/max(processes, 1)))
}

// fillsAtOnce is how many processes are filled in at once: few, so that the driver has the
// first soon, but enough to give work to the cores that one process cannot use.
func fillsAtOnce() int { return max(1, runtime.NumCPU()/mostCores) }

// outputs returns what the pages of the processes in the fast lane are written to.
func (d *dump) outputs() []pages.Output {
	var outputs []pages.Output
	for _, t := range d.inLane() {
		outputs = append(outputs, t.lane.output)
	}
	return outputs
}

// pageFiles returns the files of these outputs, for the watcher to hold open.
func (d *dump) pageFiles() []*os.File {
	var files []*os.File
	for _, output := range d.outputs() {
		files = append(files, output.Files()...)
	}
	return files
}

// beginCopy begins to copy out what the checkpoint has put into a process's memory. No
// thread of the process runs meanwhile.
func (d *dump) beginCopy(ctx context.Context, t *target) error {
	if t.lane == nil {
		return nil
	}
	if err := releaseThreads(ctx, t.tracer, []*target{t}); err != nil {
		return err
	}
	space, err := proc.ReadAddressSpace(t.PID)
	if err != nil {
		return err
	}
	l := t.lane
	l.ranges = slices.DeleteFunc(space.NewSince(t.before), func(r proc.Range) bool { return r.Size() < stagingLeast })
	if len(l.ranges) == 0 {
		return d.leaveToCriu(t)
	}
	l.copied = make(chan struct{})
	d.copies.stall.moved()
	go func() {
		defer close(l.copied)
		if l.err = d.session.spanOf(t.PID, "copy", func() error { return d.copyOut(t) }); l.err != nil {
			d.copies.stall.end(l.err)
		}
	}()
	return nil
}

func (d *dump) copyOut(t *target) error {
	l, c := t.lane, d.copies
	err := pages.Copy(c.ctx, t.Process, l.ranges, watchedSink{l.output, progress{c.ctx, d.session, c.stall, "copying"}}, d.Config.FastLane.Compress)
	if err != nil {
		return err
	}
	if l.listing, err = l.output.Finish(); err != nil || !d.syncs() {
		return err
	}
	if err := d.session.failpoint(c.ctx, "dump.syncing"); err != nil {
		return err
	}
	return l.output.Sync(c.stall.moved)
}

// leaveToCriu takes a process whose memory is still whole out of the fast lane.
func (d *dump) leaveToCriu(t *target) error {
	err := errors.Join(t.lane.output.Remove(), t.lane.output.Close())
	t.lane, t.member.Pages = nil, nil
	return err
}

// awaitCopies waits until everything is copied and on disk.
func (d *dump) awaitCopies(context.Context) error {
	for _, t := range d.inLane() {
		select {
		case <-t.lane.copied:
		case <-d.copies.ctx.Done():
			return fmt.Errorf("the image directory: %w", context.Cause(d.copies.ctx))
		}
		if t.lane.err != nil {
			return t.lane.err
		}
		t.member.Pages.Listing = &t.lane.listing // until now it only named the files
	}
	return nil
}

func (d *dump) inLane() []*target {
	var in []*target
	for _, t := range d.targets {
		if t.lane != nil {
			in = append(in, t)
		}
	}
	return in
}

type watchedSink struct {
	pages.Sink
	progress
}

func (s watchedSink) Put(worker int, chunk pages.Chunk) error {
	if err := s.chunk(); err != nil {
		return err
	}
	return s.Sink.Put(worker, chunk)
}
