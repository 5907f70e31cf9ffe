package store

import (
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
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"cucriu/internal/criuimage"
	"cucriu/internal/durable"
	"cucriu/internal/image"
)

const (
	pieceBytes = 1 << 20 // what is copied at once
	// flushBytes is how much is written before the kernel is told to begin with the disk, so
	// that little is left for the sync at the end.
	flushBytes = 8 << 20
)

// drainer copies files into a partial directory.
type drainer struct {
	store       *Store
	ctx         context.Context //nolint:containedctx // of one drain
	from, to    *os.Root
	dir         string // the path of to
	done, total int64
	progress    func(Progress)
	buffer      []byte
	room        room
	added       []File // what is in the partial directory
	names       map[string]bool
	dirs        []string // made here, and "."
	written     int64    // bytes
	warnings    []string
}

// image puts all files into the partial directory. An image without CUDA processes has no
// manifest.
func (d *drainer) image(names []string) error {
	staged, err := image.ReadManifest(d.from.Name())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the staged image: %w", err)
	}
	m, err := d.pages(staged)
	if err != nil {
		return err
	}
	there := pageNames(staged)
	memory, err := d.memory(names)
	if err != nil {
		return err
	}
	maps.Copy(there, memory)
	for _, name := range names {
		switch {
		case there[name]:
			continue // pages or memory has put it there
		case name == image.ManifestName && !reflect.DeepEqual(m, staged):
			err = d.manifest(m)
		default:
			_, err = d.file(name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// add notes that a file is in the partial directory. Processes may share one.
func (d *drainer) add(f File, written int64) {
	if d.names[f.Name] {
		return
	}
	d.names[f.Name] = true
	d.added = append(d.added, f)
	d.written += written
}

func (d *drainer) warn(text string) {
	d.warnings = append(d.warnings, text)
	d.store.log.Warn("A checkpoint is damaged", "dir", d.store.dir, "what", text)
}

// sync waits until all files are on disk. Several at once share the work of the file system.
func (d *drainer) sync() error {
	var group errgroup.Group
	group.SetLimit(8)
	for _, f := range d.added {
		group.Go(func() error {
			if err := d.ctx.Err(); err != nil {
				return err
			}
			return durable.Sync(filepath.Join(d.dir, f.Name))
		})
	}
	return group.Wait()
}

// file puts a file into the partial directory. Where both directories are on
// one file system it gets a second name, and is only read.
func (d *drainer) file(name string) (File, error) {
	source, info, err := criuimage.OpenIn(d.from, name)
	if err != nil {
		return File{}, err
	}
	defer source.Close()
	linked, err := d.link(source, name)
	if err != nil {
		return File{}, err
	}
	target := source
	if !linked {
		target, err = d.to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return File{}, err
		}
		defer target.Close()
	}
	f, err := d.copy(name, source, target, linked, d.report)
	if err == nil && f.Bytes != info.Size() {
		err = fmt.Errorf("it had %d bytes, and %d were read", info.Size(), f.Bytes)
	}
	if err != nil {
		return File{}, err
	}
	d.add(f, f.Bytes)
	return f, d.store.step(d.ctx, stepFile)
}

// link reports whether the file has got a second name in the partial directory.
func (d *drainer) link(source *os.File, name string) (bool, error) {
	held := fmt.Sprintf("/proc/self/fd/%d", source.Fd())
	err := unix.Linkat(unix.AT_FDCWD, held, unix.AT_FDCWD, filepath.Join(d.dir, name), unix.AT_SYMLINK_FOLLOW)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EPERM), errors.Is(err, unix.EMLINK), errors.Is(err, unix.EOPNOTSUPP):
		return false, nil // another file system, or one without links
	}
	return false, os.NewSyscallError("linkat", err)
}

// copy reads to the end, and writes what it reads unless the file is linked. report is called
// for what is done.
func (d *drainer) copy(name string, source io.Reader, target *os.File, linked bool, report func(name string, n int64)) (File, error) {
	if d.buffer == nil {
		d.buffer = make([]byte, pieceBytes)
	}
	f := File{Name: name}
	table := crc32.MakeTable(crc32.Castagnoli)
	for flushed := int64(0); ; {
		n, err := io.ReadFull(source, d.buffer)
		if errors.Is(err, io.ErrUnexpectedEOF) && n > 0 {
			err = nil // the next one finds the end
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return f, err
		}
		if n > 0 {
			piece := d.buffer[:n]
			f.CRC32C = crc32.Update(f.CRC32C, table, piece)
			if err := d.pay(n, linked); err != nil {
				return f, err
			}
			if !linked {
				if _, err := target.WriteAt(piece, f.Bytes); err != nil {
					return f, err
				}
			}
			f.Bytes += int64(n)
			report(name, int64(n))
		}
		if f.Bytes-flushed >= flushBytes {
			// What this misses, Sync does.
			_ = unix.SyncFileRange(int(target.Fd()), flushed, f.Bytes-flushed, unix.SYNC_FILE_RANGE_WRITE)
			flushed = f.Bytes
		}
		if err != nil {
			return f, nil // the end
		}
	}
}

// pay waits until n bytes may be written, and fails if they are not to be.
func (d *drainer) pay(n int, linked bool) error {
	if err := d.store.pay(d.ctx, n); err != nil {
		return err
	}
	if linked {
		return nil
	}
	return d.room.take(d.dir, n)
}

func (d *drainer) report(name string, n int64) {
	d.done += n
	if d.progress != nil {
		d.progress(Progress{Done: d.done, Total: d.total, File: name})
	}
}

// reserveBytes is how much room a publication leaves on the disk: a job that writes to the
// same one must not find it full. On a small disk it is a 32nd of it.
const reserveBytes = 64 << 20

// room counts what is written to a disk, and looks now and then at how much is free.
type room struct {
	mutex sync.Mutex
	left  int64 // may be written before the next look
}

// take fails if n more bytes would leave too little room.
func (r *room) take(dir string, n int) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.left -= int64(n); r.left >= 0 {
		return nil
	}
	r.left = flushBytes - int64(n)
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return os.NewSyscallError("statfs", err)
	}
	size, free := int64(disk.Blocks)*disk.Bsize, int64(disk.Bavail)*disk.Bsize
	reserve := min(reserveBytes, size/32)
	// Another process may write as well: the room is not taken up to the last byte.
	if r.left = min(r.left, (free-reserve)/2-int64(n)); free-int64(n) < reserve {
		return fmt.Errorf("%d MiB are free, and %d are kept: %w", free>>20, reserve>>20, unix.ENOSPC)
	}
	return nil
}
