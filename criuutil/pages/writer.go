package pages

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Writer writes the memory of one process into files: an [Output].
type Writer struct {
	id     string
	pid    int
	files  []*os.File // the index, then the shards
	shards []shard
	sync   bool
}

// shard is written by one worker.
type shard struct {
	file    *os.File
	end     int64
	records []record
}

// Create makes the files for a process's memory in a directory, empty; pid is
// what the image knows the process by. They must not exist yet. If one cannot be
// made, none is left.
func Create(dir, id string, pid, shards int) (*Writer, error) {
	w := &Writer{id: id, pid: pid}
	for _, name := range NewListing(id, shards).Names(pid) {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("pages: %w", err), w.Remove(), w.Close())
		}
		w.files = append(w.files, f)
	}
	for _, f := range w.files[1:] {
		w.shards = append(w.shards, shard{file: f})
	}
	return w, nil
}

// Files are the index and the shards, open.
func (w *Writer) Files() []*os.File { return w.files }

// Workers is the number of shards.
func (w *Writer) Workers() int { return len(w.shards) }

// Put appends a chunk to the worker's shard.
func (w *Writer) Put(worker int, chunk Chunk) error {
	s := &w.shards[worker]
	if s.end == 0 {
		if err := s.write(header(w.id, w.pid, uint32(worker))); err != nil {
			return err
		}
	}
	r := record{chunk: chunk, stored: uint32(len(chunk.Data)), shard: uint32(worker), offset: s.end}
	r.chunk.Data = nil
	if chunk.Codec != Zero {
		if err := s.write(chunk.Data); err != nil {
			return err
		}
		if w.sync {
			// Where it cannot be done, Finish does all of it.
			_ = unix.SyncFileRange(int(s.file.Fd()), r.offset, int64(r.stored), unix.SYNC_FILE_RANGE_WRITE)
		}
	}
	s.records = append(s.records, r)
	return nil
}

func (s *shard) write(data []byte) error {
	n, err := s.file.WriteAt(data, s.end)
	s.end += int64(n)
	if err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	return nil
}

// Finish writes the index. More memory than a [Reader] takes is an error.
func (w *Writer) Finish() (Listing, error) {
	l := Listing{ID: w.id, IndexBytes: headerSize}
	for i := range w.shards {
		s := &w.shards[i]
		if s.end == 0 { // this worker came too late to have anything to do
			if err := s.write(header(w.id, w.pid, uint32(i))); err != nil {
				return l, err
			}
		}
		l.ShardBytes = append(l.ShardBytes, s.end)
		l.IndexBytes += recordSize * int64(len(s.records))
	}
	if err := l.Validate(); err != nil {
		return l, err
	}
	var records []record
	for _, s := range w.shards {
		records = append(records, s.records...)
	}
	slices.SortFunc(records, func(a, b record) int { return cmp.Compare(a.chunk.Address, b.chunk.Address) })
	index := header(w.id, w.pid, indexShard)
	for _, r := range records {
		index = r.append(index)
		l.Bytes += uint64(r.chunk.Size)
	}
	l.IndexChecksum = checksum(index)
	if _, err := w.files[0].WriteAt(index, 0); err != nil {
		return l, fmt.Errorf("pages: %w", err)
	}
	return l, nil
}

// Sync waits until everything is on disk, and tells moved whenever a part of it
// is: from several goroutines, and long before the end if there is much.
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
		if err != nil { // which the kernel does not tell a second time
			return &os.PathError{Op: "sync_file_range", Path: f.Name(), Err: err}
		}
		moved()
	}
	defer moved()
	return f.Sync() // what says where on the disk it is, too
}

// Remove removes the files; one that is gone already is no error.
func (w *Writer) Remove() error { return removeAll(w.files, (*os.File).Name) }

// removeAll removes files that have these paths; one that is not there is no error.
func removeAll[F any](files []F, path func(F) string) error {
	var errs []error
	for _, f := range files {
		if err := os.Remove(path(f)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Identity tells these files from others of their names.
func (w *Writer) Identity() (map[string]FileID, error) { return identities(w.files) }

// Close closes the files.
func (w *Writer) Close() error { return closeAll(w.files) }

func closeAll(files []*os.File) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
