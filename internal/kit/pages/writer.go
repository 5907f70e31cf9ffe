package pages

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/durable"
)

// Writer writes the memory of one process into files. It is a [Sink].
type Writer struct {
	id     string
	pid    int
	files  []*os.File // the index, then the shards
	shards []*shard
	dir    string
	// SyncAlong says to start writing each chunk to the disk as soon as it is in its file,
	// so that less is left to sync at the end.
	SyncAlong bool
	// Written, if it is set, is called for every part of a file that is complete, in the order of the
	// file: by several goroutines, one for each file, while the process is stopped.
	Written func(f *os.File, offset, size int64)
	base    *Base
	reused  []record // chunks of the base
	// reserved says that the shards have more room than is written. Whoever gives it back has giving.
	reserved atomic.Bool
	giving   sync.Mutex
}

// shard is a file of chunks. One worker writes it.
type shard struct {
	file    *os.File
	mu      sync.Mutex // of whoever moves end, or cuts the file there
	end     int64
	records []record
}

// Create creates the files for a process's memory in a directory, empty. pid is the pid of
// the process in the image. The files must not exist yet. If one cannot be created, none
// remains.
func Create(dir, id string, pid, shards int) (*Writer, error) {
	w := &Writer{dir: dir, id: id, pid: pid}
	for _, name := range NewListing(id, shards).Names(pid) {
		f, err := createFile(dir, name)
		if err != nil {
			return nil, errors.Join(err, w.Remove(), w.Close())
		}
		w.files = append(w.files, f)
	}
	for _, f := range w.files[1:] {
		w.shards = append(w.shards, &shard{file: f})
	}
	return w, nil
}

// Reserve makes room for so many bytes of chunks where files are kept in memory (tmpfs). The
// kernel clears each page that a file gets, and it is better to have it do so before the process
// stands still. If there is no room, the writing finds out.
func (w *Writer) Reserve(bytes int64) {
	var fs unix.Statfs_t
	if len(w.shards) == 0 || unix.Fstatfs(int(w.shards[0].file.Fd()), &fs) != nil || fs.Type != unix.TMPFS_MAGIC {
		return
	}
	w.reserved.Store(true)
	each := headerSize + bytes/int64(len(w.shards))
	var wg sync.WaitGroup
	for _, s := range w.shards {
		wg.Go(func() {
			if unix.Fallocate(int(s.file.Fd()), 0, 0, each) != nil {
				_ = s.file.Truncate(0)
			}
		})
	}
	wg.Wait()
}

// giveBack gives back the room that was reserved and is not, or not yet, needed: of all files at once, because that
// takes the kernel a while.
func (w *Writer) giveBack() error {
	w.giving.Lock()
	defer w.giving.Unlock()
	if !w.reserved.Load() {
		return nil
	}
	var group errgroup.Group
	for _, s := range w.shards {
		group.Go(func() error {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.file.Truncate(s.end)
		})
	}
	err := group.Wait()
	w.reserved.Store(false)
	return err
}

// Files returns the open files: the index, then the shards, then those of the base.
func (w *Writer) Files() []*os.File {
	if w.base == nil {
		return w.files
	}
	return slices.Concat(w.files, w.base.Files()[1:])
}

// Workers returns the number of shards.
func (w *Writer) Workers() int { return len(w.shards) }

// Put appends a chunk to the worker's shard.
func (w *Writer) Put(worker int, chunk Chunk) error {
	if r, reused := w.reusedFor(chunk.Address); reused {
		if r.checksum != chunk.Checksum || r.size != chunk.Size {
			return fmt.Errorf("the memory at %#x has changed since the earlier dump, and counts as unchanged", chunk.Address)
		}
		return nil
	}
	s := w.shards[worker]
	if s.end == 0 {
		if err := w.append(s, header(w.id, w.pid, uint32(worker))); err != nil {
			return err
		}
	}
	r := record{chunk.Address, chunk.Size, chunk.Checksum, uint32(len(chunk.Data)), uint32(worker), s.end, chunk.Codec}
	if chunk.Codec != Zero {
		if err := w.append(s, chunk.Data); err != nil {
			return err
		}
		if w.SyncAlong {
			// If this fails, Sync still writes everything.
			_ = unix.SyncFileRange(int(s.file.Fd()), r.offset, int64(r.stored), unix.SYNC_FILE_RANGE_WRITE)
		}
	}
	s.records = append(s.records, r)
	return nil
}

// append appends to a shard. A worker that is faster than the others needs more room than its share, and there may be
// no other than what is reserved for them.
func (w *Writer) append(s *shard, data []byte) error {
	reserved := w.reserved.Load()
	s.mu.Lock()
	offset := s.end
	n, err := s.file.WriteAt(data, offset)
	s.end += int64(n)
	s.mu.Unlock()
	full := reserved && durable.IsFull(err)
	if err != nil && !full {
		return fmt.Errorf("pages: %w", err)
	}
	if w.Written != nil && n > 0 {
		w.Written(s.file, offset, int64(n))
	}
	if !full {
		return nil
	}
	if err := w.giveBack(); err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	return w.append(s, data[n:])
}

// Finish writes the index. It fails if there is more memory than a [Reader] accepts.
func (w *Writer) Finish() (Listing, error) {
	l := Listing{ID: w.id, IndexBytes: headerSize}
	for i := range w.shards {
		s := w.shards[i]
		if s.end == 0 { // this worker got no chunk
			if err := w.append(s, header(w.id, w.pid, uint32(i))); err != nil {
				return l, err
			}
		}
		l.ShardBytes = append(l.ShardBytes, s.end)
		l.IndexBytes += recordSize * int64(len(s.records))
	}
	l.IndexBytes += recordSize * int64(len(w.reused))
	if err := w.giveBack(); err != nil {
		return l, fmt.Errorf("pages: %w", err)
	}
	if w.base != nil {
		if err := l.Extend(w.pid, w.base); err != nil {
			return l, err
		}
	}
	if err := l.Validate(); err != nil {
		return l, err
	}
	records := w.reused
	for _, s := range w.shards {
		records = append(records, s.records...)
	}
	slices.SortFunc(records, func(a, b record) int { return cmp.Compare(a.address, b.address) })
	index := l.addIndex(w.pid, records)
	if _, err := w.files[0].WriteAt(index, 0); err != nil {
		return l, fmt.Errorf("pages: %w", err)
	}
	if w.Written != nil {
		w.Written(w.files[0], 0, int64(len(index)))
	}
	return l, nil
}

// Sync waits until everything is on disk. It calls moved whenever a part is: from several
// goroutines, and, if there is much to sync, long before the end.
func (w *Writer) Sync(moved func()) error {
	errs := make([]error, len(w.files))
	var wg sync.WaitGroup
	for i, f := range w.files {
		wg.Go(func() { errs[i] = syncFile(f, moved) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func syncFile(f *os.File, moved func()) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	const part, wait = 16 << 20, unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	for at := int64(0); at < info.Size(); at += part {
		err := unix.SyncFileRange(int(f.Fd()), at, part, wait)
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ESPIPE) || errors.Is(err, unix.EINVAL) {
			break
		}
		if err != nil { // the kernel reports it only once
			return &os.PathError{Op: "sync_file_range", Path: f.Name(), Err: err}
		}
		moved()
	}
	defer moved()
	return f.Sync() // also the metadata, without which the data cannot be found
}

// Remove removes the files. A file that is gone already is no error.
func (w *Writer) Remove() error {
	var names []string
	for _, f := range w.files {
		names = append(names, filepath.Base(f.Name()))
	}
	return removeAll(w.dir, names)
}

// Identity returns what tells these files from others with the same names.
func (w *Writer) Identity() (map[string]FileID, error) {
	ids := make(map[string]FileID)
	for _, f := range w.files {
		info, err := f.Stat()
		if err != nil {
			return nil, fmt.Errorf("pages: %w", err)
		}
		ids[filepath.Base(f.Name())] = Identify(info)
	}
	return ids, nil
}

// Close closes the files.
func (w *Writer) Close() error { return closeAll(w.files) }
