package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/units"
)

// The steps of a change, at which tests interrupt it.
const (
	stepBegin    = "store.begin"    // the partial directory exists
	stepFile     = "store.file"     // a file is in it, or the pages of a process
	stepLink     = "store.link"     // memory was compared with that of an earlier checkpoint
	stepRecord   = "store.record"   // all files are in it
	stepRename   = "store.rename"   // all of it is on disk
	stepRenamed  = "store.renamed"  // it has its name
	stepSetAside = "store.setaside" // a checkpoint to be removed or replaced has lost its name
)

func (s *Store) step(ctx context.Context, step string) error {
	if s.interrupt != nil {
		if err := s.interrupt(step); err != nil {
			return err
		}
	}
	return failpoint.Hit(ctx, step, 0)
}

// Publish makes a checkpoint of an image directory, which stays as it is. The checkpoint is
// complete and on disk, or absent.
//
// If the disk is nearly full, Publish fails with [unix.ENOSPC] before it is full: the job may
// write to the same one.
func (s *Store) Publish(ctx context.Context, staged string, info Info) (Checkpoint, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.mayChange(); err != nil {
		return Checkpoint{}, err
	}
	name, err := s.nextName()
	p := &publication{store: s, ctx: ctx, files: make(map[string]File), buffer: make([]byte, pieceBytes)}
	if err == nil {
		err = s.create(ctx, name, func(dir string) error { return p.fill(dir, staged, info) })
	}
	if err != nil {
		return Checkpoint{}, fmt.Errorf("publish checkpoint %s: %w", name, err)
	}
	c, err := s.Checkpoint(name)
	c.Warnings = p.warnings
	c.Shared = c.Bytes - c.New // the staged directory may still have other files of it
	return c, err
}

// create has fill write a checkpoint, waits until all of it is on disk, and gives it its name. An
// earlier one of that name is replaced: it is whole or absent, as the new one.
func (s *Store) create(ctx context.Context, name string, fill func(dir string) error) error {
	partial, dir, earlier := s.checkpointDir(partialPrefix+name), s.checkpointDir(name), s.checkpointDir(partialPrefix+"earlier-"+name)
	err := errors.Join(os.RemoveAll(partial), os.RemoveAll(earlier), os.Mkdir(partial, 0o700))
	for _, do := range []func() error{
		func() error { return s.step(ctx, stepBegin) },
		func() error { return fill(partial) },
		func() error { return durable.SyncTree(ctx, partial) },
		func() error { return s.step(ctx, stepRename) },
		s.Fenced,
		func() error {
			if err := s.setAside(ctx, name, earlier); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		},
		func() error { return os.Rename(partial, dir) },
	} {
		if err == nil {
			err = do()
		}
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(partial))
	}
	return cmp.Or(s.step(ctx, stepRenamed), durable.Sync(s.path(CheckpointsDir)), os.RemoveAll(earlier))
}

const (
	pieceBytes = 1 << 20 // what is copied at once
	// flushBytes is how much is written before the kernel is told to begin with the disk, so
	// that little is left for the sync at the end.
	flushBytes = 8 << 20
)

// publication puts the files of one checkpoint into its partial directory.
type publication struct {
	store    *Store
	ctx      context.Context //nolint:containedctx // of one publication
	from, to *os.Root
	dir      string // the path of to
	buffer   []byte
	room     room
	bases    []Checkpoint    // with which it is compared, the newest first
	files    map[string]File // what is in the partial directory
	written  int64           // bytes
	warnings []string
}

// fill fills the partial directory.
func (p *publication) fill(dir, staged string, info Info) (err error) {
	p.dir = dir
	if p.from, err = os.OpenRoot(staged); err != nil {
		return err
	}
	defer p.from.Close()
	if p.to, err = os.OpenRoot(dir); err != nil {
		return err
	}
	defer p.to.Close()
	if p.bases, err = p.store.Bases(); err != nil {
		return err
	}
	names, err := p.listStaged()
	if err != nil {
		return err
	}
	if err := p.image(names); err != nil {
		return err
	}
	files := slices.SortedFunc(maps.Values(p.files), func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	if err := p.store.step(p.ctx, stepRecord); err != nil {
		return err
	}
	record, err := record{Info: info, Generation: p.store.owner.Generation, NewBytes: p.written, Files: files}.encode()
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, recordName), record, 0o600)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", recordName, err)
	}
	return nil
}

// baseCheckpoints is how many of the last checkpoints are looked at. State that goes back
// and forth between two is found as well.
const baseCheckpoints = 2

// Bases returns the checkpoints with which a new one is compared, the newest first.
func (s *Store) Bases() ([]Checkpoint, error) {
	all, err := s.Checkpoints()
	all = slices.DeleteFunc(all, func(c Checkpoint) bool { return !c.Usable() })
	slices.Reverse(all)
	return all[:min(len(all), baseCheckpoints)], err
}

// listStaged returns the names of all files of the staged image, and makes its directories. It
// refuses everything else.
func (p *publication) listStaged() (names []string, err error) {
	err = fs.WalkDir(p.from.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name == ".":
		case !isFileName(name):
			return fmt.Errorf("the staged image: invalid name of a checkpoint file: %.80q", name)
		case entry.IsDir():
			return p.to.Mkdir(name, 0o700)
		case !entry.Type().IsRegular():
			return fmt.Errorf("the staged image: %s is neither a file nor a directory", name)
		default:
			names = append(names, name)
			if info, err := entry.Info(); err == nil {
				p.room.need += info.Size()
			}
		}
		return nil
	})
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("the staged image is empty: %w", unix.ENOENT)
	}
	return names, err
}

// image puts all files into the partial directory. An image without CUDA processes has no
// manifest.
func (p *publication) image(names []string) error {
	staged, err := imagedir.ReadManifest(p.from.Name())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the staged image: %w", err)
	}
	m, err := p.pages(staged)
	if err != nil {
		return err
	}
	done := staged.PageNames()
	if err := p.memory(names, done); err != nil {
		return err
	}
	for _, name := range names {
		switch {
		case done[name]:
			continue // pages or memory has put it there
		case name == imagedir.ManifestName && !reflect.DeepEqual(m, staged):
			var content []byte
			if content, err = m.Encode(); err == nil {
				err = p.put(name, nil, func(to io.Writer) error { _, err := to.Write(content); return err })
			}
		default:
			err = p.file(name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (p *publication) warn(text string) {
	p.warnings = append(p.warnings, text)
	p.store.log.Warn("A checkpoint is damaged", "dir", p.store.dir, "what", text)
}

// file puts a file of the staged image into the partial directory. Where both directories are on
// one file system it gets a second name, and is only read.
func (p *publication) file(name string) error {
	source, info, err := criuimage.OpenIn(p.from, name)
	if err != nil {
		return err
	}
	defer source.Close()
	linked, err := p.link(source, name)
	if err != nil {
		return err
	}
	var target *os.File
	if linked {
		target = source
	}
	return p.put(name, target, func(to io.Writer) error {
		n, err := io.CopyBuffer(to, io.LimitReader(source, info.Size()+1), p.buffer)
		if err == nil && n != info.Size() {
			err = fmt.Errorf("it had %d bytes, but %d were read", info.Size(), n)
		}
		return err
	})
}

// link reports whether the file has got a second name in the partial directory.
func (p *publication) link(source *os.File, name string) (bool, error) {
	opened := fmt.Sprintf("/proc/self/fd/%d", source.Fd())
	err := unix.Linkat(unix.AT_FDCWD, opened, unix.AT_FDCWD, filepath.Join(p.dir, name), unix.AT_SYMLINK_FOLLOW)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EPERM), errors.Is(err, unix.EMLINK), errors.Is(err, unix.EOPNOTSUPP):
		return false, nil // another file system, or one without links
	}
	return false, os.NewSyscallError("linkat", err)
}

// put adds a file whose content write writes. One that is linked already only gets its checksum.
func (p *publication) put(name string, linked *os.File, write func(io.Writer) error) (err error) {
	o := &output{of: p, File: File{Name: name}, file: linked, linked: linked != nil}
	if !o.linked {
		if o.file, err = p.to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return err
		}
		defer o.file.Close()
	}
	if err := write(o); err != nil {
		return err
	}
	p.add(o.File, o.Bytes)
	return p.store.step(p.ctx, stepFile)
}

// add notes that a file is in the partial directory. Processes may share one.
func (p *publication) add(f File, written int64) {
	if _, added := p.files[f.Name]; !added {
		p.files[f.Name] = f
		p.written += written
	}
}

// output is a file of the partial directory on its way there.
type output struct {
	File
	of      *publication
	file    *os.File
	linked  bool
	flushed int64
}

func (o *output) Write(piece []byte) (int, error) {
	if err := o.of.ctx.Err(); err != nil {
		return 0, err
	}
	if !o.linked {
		if err := o.of.room.take(o.of.dir, len(piece)); err != nil {
			return 0, err
		}
		if _, err := o.file.Write(piece); err != nil {
			return 0, err
		}
	}
	o.CRC32C = crc32.Update(o.CRC32C, durable.Castagnoli, piece)
	o.Bytes += int64(len(piece))
	if o.Bytes-o.flushed >= flushBytes {
		// What this misses, the sync at the end does.
		_ = unix.SyncFileRange(int(o.file.Fd()), o.flushed, o.Bytes-o.flushed, unix.SYNC_FILE_RANGE_WRITE)
		o.flushed = o.Bytes
	}
	return len(piece), nil
}

// reserveBytes is how much room a publication leaves on the disk: a job that writes to the
// same one must not find it full. On a small disk it is a 32nd of it.
const reserveBytes = 64 << 20

// room counts what is written to a disk, and looks now and then at how much is free.
type room struct {
	mutex sync.Mutex
	left  int64 // may be written before the next look
	need  int64 // of the whole image, if none of it is shared
	taken int64
}

// take fails if n more bytes would leave too little room.
func (r *room) take(dir string, n int) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.taken += int64(n)
	if r.left -= int64(n); r.left >= 0 {
		return nil
	}
	r.left = flushBytes - int64(n)
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	free := freeOn(disk)
	// Another process may write as well: the room is not taken up to the last byte.
	if r.left = min(r.left, free/2-int64(n)); free < int64(n) {
		had := max(0, free+r.taken-int64(n))
		err := fault.Because(unix.ENOSPC, fmt.Sprintf("the image takes up to %s, and %s has %s free for it", units.Size(r.need), filepath.Dir(dir), units.Size(had)),
			fmt.Sprintf("free %s there", units.Size(max(r.need, r.taken)-had)))
		return &NoRoomError{err, had}
	}
	return nil
}

// NoRoomError says that a checkpoint did not fit.
type NoRoomError struct {
	error
	Had int64 // bytes that were free for it
}

func (e *NoRoomError) Unwrap() error { return e.error }

// CheckRoom fails if there is hardly more room for a checkpoint than had bytes, in which one did not fit: what is new
// since the last checkpoint only grows. (A file that is removed frees more than its bytes, which are what was counted.)
func (s *Store) CheckRoom(had int64) error {
	dir := s.path(CheckpointsDir)
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	free := freeOn(disk)
	if free > had && (had == 0 || free > had+pieceBytes) {
		return nil
	}
	meaning := fmt.Sprintf("%s has %s free for a checkpoint", dir, units.Size(max(0, free)))
	if had > 0 {
		meaning += ", hardly more than when one did not fit"
	}
	return fault.Because(unix.ENOSPC, meaning, "free more there")
}

// freeOn is how much of a disk a checkpoint may take.
func freeOn(disk unix.Statfs_t) int64 {
	return int64(disk.Bavail)*disk.Bsize - min(reserveBytes, int64(disk.Blocks)*disk.Bsize/32)
}
