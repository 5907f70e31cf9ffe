package stages

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/hooks/config"
	"cucriu/internal/core/engine"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/proc"
)

// The fast lane takes GPU state around criu. The memory that a process has gained since its checkpoint
// began is copied into files beside criu's images, and dropped in the process before criu looks at it.
// On the way back it is filled in before any thread of the job runs.
//
// From the drop on, the files are the only copy. So they are on disk before it (unless the
// configuration says otherwise), and the journal says ahead that they will be needed. The watcher holds
// them open, so a job can be restored even if somebody removes the image of a dump that failed. The dropped
// memory is inaccessible: if somebody restores the process without this program, the driver fails, and
// does not take zeros for the state of the GPU.
//
// The memory of a process takes this way if
//
//   - the configuration says pages: fast, the default
//   - criu does not send pages elsewhere (a page server, lazy pages, an incremental dump)
//   - the process has gained mappings of at least stagingLeast bytes since its checkpoint began
//   - no page of these is locked in memory, unless the kernel can drop locked pages
//   - system calls can be made in the process
//
// Otherwise it is left to criu, which writes it as any other memory.

// lane is one process's way around criu.
type lane struct {
	*engine.Target
	output  *pages.Writer
	base    *pages.Base   // what an earlier image has of it; nil if there is none
	ranges  []proc.Range  // the staging memory
	copied  chan struct{} // closed when the copy is over; nil before it begins
	listing pages.Listing
	err     error // of the copy
	left    bool  // to criu, which writes the memory then
}

// stagingLeast is the least size, in bytes, of a mapping that is taken for staging memory. What the
// restore thread may have mapped for itself meanwhile is smaller, and must stay.
const stagingLeast = 1 << 20

// lanes are the ways of a dump's processes around criu. Their copies may last as long as the files
// take, but they end if the files take no more data. When one fails, the others end, too.
type lanes struct {
	*dump
	copying context.Context
	stall   *engine.Stall // nil before the first copy
	all     []*lane
	bases   map[int]*base
}

// checkpoint checkpoints the processes. It copies out the memory of the first while the checkpoints of
// the others go on.
func (l *lanes) checkpoint(ctx context.Context) error {
	l.copying, l.stall = engine.NewStall(ctx, l.Config.Checkpoint.Timeout)
	return l.Suspension.Checkpoint(ctx)
}

// stopCopies ends the copies and waits for their end, but not forever: a copy that hangs in a write
// only reads the processes' memory.
func (d *lanes) stopCopies() {
	if d.stall == nil {
		return
	}
	d.stall.End(context.Canceled)
	patience := time.After(engine.ReleaseTimeout)
	for _, l := range d.open() {
		if l.copied == nil {
			continue
		}
		select {
		case <-l.copied:
		case <-patience:
			return
		}
	}
}

func (d *lanes) close() {
	for _, l := range d.open() {
		l.output.Close()
	}
	for _, b := range d.bases {
		b.Close()
	}
}

// plan names the files of the fast lane, for the journal. A run that comes after us removes them by
// these names.
func (d *lanes) plan() error {
	if d.Config.Pages != config.Fast || d.criu.PagesElsewhere {
		return nil
	}
	var random [8]byte
	rand.Read(random[:])
	bases := d.openBases()
	fd := journal.FirstWatcherFD
	for _, t := range d.Targets {
		listing := pages.NewListing(hex.EncodeToString(random[:]), d.CoresEach())
		t.Member.Pages = &journal.MemberPages{Listing: listing, WatcherFD: fd}
		if d.stage.Compare || d.stage.Base != "" {
			t.Compare = engine.Compare{Generation: binary.LittleEndian.Uint64(random[:]) | 1, CopyAll: d.stage.CopyAll}
		}
		if base := bases[t.Member.ImagePID]; base != nil && listing.Extend(t.Member.ImagePID, base.Base) == nil {
			t.Compare.Base = base.out
			t.Member.Base = &journal.MemberBase{Dir: d.stage.Base, PID: base.PID, Listing: base.Listing, WatcherFD: fd + listing.Files()}
			fd += base.Listing.Files()
		}
		fd += listing.Files()
	}
	d.bases = bases
	return nil
}

// base is what an earlier image has of a process.
type base struct {
	*pages.Base
	out *imagedir.Out
}

// openBases opens what the earlier image has, by the pids in it. What cannot be used is not.
func (d *lanes) openBases() map[int]*base {
	if d.stage.Base == "" || !proc.CanDropLocked() { // it may have to be left to criu
		return nil
	}
	bases := make(map[int]*base)
	m, err := imagedir.ReadManifest(d.stage.Base)
	if errors.Is(err, fs.ErrNotExist) { // the job did not use a GPU yet
		return bases
	}
	for _, p := range m.Processes {
		if err != nil || p.Out == nil || p.Pages == nil {
			continue
		}
		var b *pages.Base
		if b, err = pages.OpenBase(d.stage.Base, p.PID, p.Pages); err != nil {
			continue
		}
		if !b.Covers(p.Out.Staging) {
			b.Close()
			continue
		}
		bases[p.PID] = &base{b, p.Out}
	}
	if err != nil {
		d.Log.Warn("the earlier checkpoint cannot be used: all memory is copied", "image", d.stage.Base, "error", err)
	}
	return bases
}

// create creates the files, empty, before any process is touched: the watcher is to hold them open from
// then on.
func (d *lanes) create() error {
	for _, t := range d.Targets {
		if t.Member.Pages == nil {
			continue
		}
		listing := t.Member.Pages.Listing
		shards := len(listing.ShardBytes)
		if t.Member.Base != nil {
			shards -= len(t.Member.Base.Listing.ShardBytes)
		}
		output, err := pages.Create(d.imageDir, listing.ID, t.Member.ImagePID, shards)
		if err != nil {
			return err
		}
		output.SyncAlong, output.Written = d.syncs(), d.stage.Written
		l := &lane{Target: t, output: output}
		if t.Member.Base != nil {
			l.base = d.bases[t.Member.ImagePID].Base
			output.UseBase(l.base)
		}
		d.all = append(d.all, l)
		if d.Config.FastLane.Compress == config.Uncompressed && d.JudgeRoom == nil { // else there may not be room for all of it
			output.Reserve(expectedBytes(t.Member.MemoryBytes))
		}
	}
	return d.Session.Failpoint(context.Background(), "dump.created")
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

// outputs returns what the pages of the processes in the fast lane are written to.
func (d *lanes) outputs() []*pages.Writer {
	var outputs []*pages.Writer
	for _, l := range d.open() {
		outputs = append(outputs, l.output)
	}
	return outputs
}

// files returns the files of these outputs, for the watcher to hold open.
func (d *lanes) files() []*os.File {
	var files []*os.File
	for _, l := range d.open() {
		files = append(files, l.output.Files()...)
		if l.base != nil {
			files = append(files, l.base.Files()...)
		}
	}
	return files
}

// beginCopy begins to copy out what the checkpoint has put into a process's memory. No thread of the
// process runs meanwhile.
func (d *lanes) beginCopy(ctx context.Context, t *engine.Target) error {
	at := slices.IndexFunc(d.all, func(l *lane) bool { return l.Target == t })
	if at < 0 {
		return nil
	}
	l := d.all[at]
	if err := engine.ReleaseThreads(ctx, t.Tracer, []*engine.Target{t}); err != nil {
		return err
	}
	space, err := proc.ReadAddressSpace(t.PID)
	if err != nil {
		return err
	}
	l.ranges = slices.DeleteFunc(space.NewSince(t.Before), func(r proc.Range) bool { return r.Size() < stagingLeast })
	if len(l.ranges) == 0 {
		return l.leaveToCriu()
	}
	l.copied = make(chan struct{})
	d.stall.Begin()
	go func() {
		defer close(l.copied)
		defer d.stall.Done()
		if l.err = d.Session.SpanOf(t.PID, "copy", func() error { return d.copyOut(l) }); l.err != nil {
			d.stall.End(l.err)
		}
	}()
	return nil
}

func (d *lanes) copyOut(l *lane) error {
	same, copied, err := l.Same()
	if err != nil {
		return err
	}
	var reused []proc.Range
	for _, s := range same {
		if len(proc.Subtract([]proc.Range{s.Now}, l.ranges)) > 0 { // what the library tells is the job's word
			return fmt.Errorf("the library in process %d tells of memory that is not there, at %#x", l.PID, s.Now.Start)
		}
		if err := errors.Join(d.copying.Err(), l.output.Reuse(s.Now, s.Before)); err != nil {
			return err
		}
		reused = append(reused, s.Now)
	}
	d.Session.Update(func() { l.Member.Unchanged = proc.Total(reused) })
	ranges := l.ranges
	if !copied {
		ranges = proc.Subtract(ranges, reused)
	}
	sink := watchedSink{l.output, engine.Progress{Copying: d.copying, Session: d.Session, Stall: d.stall, Doing: "copying"}}
	codec, err := pages.ParseCodec(string(d.Config.FastLane.Compress))
	if err != nil {
		return err
	}
	if err := pages.Copy(d.copying, l.Process, ranges, sink, codec); err != nil {
		return err
	}
	if l.listing, err = l.output.Finish(); err != nil || !d.syncs() {
		return err
	}
	if err := d.Session.Failpoint(d.copying, "dump.syncing"); err != nil {
		return err
	}
	return l.output.Sync(d.stall.Moved)
}

// leaveToCriu leaves the memory of a process, which is still whole, to criu.
func (l *lane) leaveToCriu() error {
	if l.Member.Unchanged > 0 {
		return fmt.Errorf("process %d (%s): criu would have to write its GPU memory, of which a part was left out", l.PID, l.Member.Name)
	}
	l.left, l.Member.Pages = true, nil
	return errors.Join(l.output.Remove(), l.output.Close())
}

// awaitCopies waits until everything is copied and on disk.
func (d *lanes) awaitCopies(context.Context) error {
	for _, l := range d.open() {
		select {
		case <-l.copied:
		case <-d.copying.Done():
			return fmt.Errorf("the image directory: %w", context.Cause(d.copying))
		}
		if l.err != nil {
			return l.err
		}
		l.Member.Pages.Listing = &l.listing // until now it only named the files
	}
	return nil
}

// open returns the lanes that are not left to criu.
func (d *lanes) open() []*lane {
	return slices.DeleteFunc(slices.Clone(d.all), func(l *lane) bool { return l.left })
}

type watchedSink struct {
	pages.Sink
	engine.Progress
}

func (s watchedSink) Put(worker int, chunk pages.Chunk) error {
	if err := s.Chunk(); err != nil {
		return err
	}
	return s.Sink.Put(worker, chunk)
}

// localFileSystems keep a write in this host's memory or on its disks. The others, and those that are
// not known, may send it to a server or a program that refuses it, and only fsync tells.
var localFileSystems = []int64{
	unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC,
	0x2fc12fc1, // ZFS
	0xca451a4e, // bcachefs
}

// syncs reports whether GPU state is brought to disk before it is dropped. The configuration cannot
// switch that off where a write may still fail later.
func (d *lanes) syncs() bool {
	if d.Config.FastLane.Sync {
		return true
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(d.imageDir, &stat); err != nil {
		return true
	}
	return !slices.Contains(localFileSystems, int64(stat.Type))
}

// drop drops, in the processes, the memory that was copied out. The journal says ahead that it must be
// filled in again.
func (d *lanes) drop(ctx context.Context) (err error) {
	ctx, cancel := d.Config.Checkpoint.Within(ctx)
	defer cancel()
	if err := d.leaveLockedMemory(ctx); err != nil {
		return err
	}
	for _, l := range d.open() {
		err := d.Session.Failpoint(ctx, "dump.borrow")
		if err == nil {
			l.Lent, err = engine.Borrow(ctx, d.Session, l.Target, d.CoresEach(), 0, d.Session.BorrowedFile(l.PID))
		}
		if err != nil {
			d.Log.Warn("no system calls can be made in the process: criu writes its GPU state", "pid", l.PID, "error", err)
			if err := l.leaveToCriu(); err != nil {
				return err
			}
		}
	}
	if d.manifest, err = d.describe(); err != nil {
		return err
	}
	open := d.open()
	for _, l := range open {
		l.Member.Pages.Dropped = true
	}
	if err := d.Session.Save(); err != nil {
		return err
	}
	if err := d.Session.Failpoint(ctx, "dump.noted"); err != nil {
		return err
	}
	return engine.ParallelUpTo(len(open), len(open), func(i int) error {
		return d.Session.SpanOf(open[i].PID, "drop", func() error { return d.dropOne(ctx, open[i]) })
	})
}

func (d *lanes) dropOne(ctx context.Context, l *lane) error {
	err := l.Lent.Madvise(ctx, l.ranges, unix.MADV_DONTNEED)
	if errors.Is(err, unix.EINVAL) { // the process locks its memory (mlockall)
		err = l.Lent.Madvise(ctx, l.ranges, unix.MADV_DONTNEED_LOCKED)
	}
	if err != nil {
		return err
	}
	if err := d.Session.Failpoint(ctx, "dump.dropping"); err != nil {
		return err
	}
	if err := l.Lent.Mprotect(ctx, l.ranges, unix.PROT_NONE); err != nil {
		return err
	}
	if err := d.Session.Failpoint(ctx, "dump.inaccessible"); err != nil {
		return err
	}
	if err := l.Lent.Return(ctx); err != nil {
		return err
	}
	// Every thread must be back in the group-stop before criu comes. If one is not, criu lets it run,
	// to see it stop a second time.
	return proc.KeepStopped(ctx, l.Process)
}

// leaveLockedMemory leaves the memory of processes that lock theirs (mlockall) to criu where the kernel
// cannot drop it: before 5.18. It must do so before the journal says that anything is dropped.
func (d *lanes) leaveLockedMemory(ctx context.Context) error {
	// The failpoint makes this kernel count as an old one.
	if err := d.Session.Failpoint(ctx, "dump.drop-locked"); err == nil && proc.CanDropLocked() {
		return nil
	}
	for _, l := range d.open() {
		status, err := proc.ReadStatus(l.PID)
		if err != nil {
			return err
		}
		if status.Locked == 0 {
			continue
		}
		d.Log.Warn("the process locks its memory, and this kernel (before 5.18) cannot drop that: criu writes its GPU state", "pid", l.PID)
		if err := l.leaveToCriu(); err != nil {
			return err
		}
	}
	return nil
}
