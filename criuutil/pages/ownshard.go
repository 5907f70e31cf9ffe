package pages

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// ownShard is a shard that [Rewrite] writes. It is created when it gets its first chunk.
type ownShard struct {
	origin  Origin
	file    *os.File
	end     int64
	sum     uint32
	flushed int64
}

// flushBytes is how much is written before the kernel is told to begin with the disk.
const flushBytes = 8 << 20

func (s *ownShard) open(o RewriteOptions, number int) error {
	if s.file != nil {
		return nil
	}
	s.origin = Origin{ID: o.ID, PID: o.PID, Shard: number}
	var err error
	if s.file, err = createFile(o.Dir, s.origin.name()); err != nil {
		return err
	}
	return s.write(header(o.ID, o.PID, uint32(number)))
}

func (s *ownShard) write(data []byte) error {
	n, err := s.file.WriteAt(data, s.end)
	s.sum = crc32.Update(s.sum, castagnoli, data[:n])
	s.end += int64(n)
	if err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	if s.end-s.flushed >= flushBytes {
		// What this misses, the sync at the end does.
		_ = unix.SyncFileRange(int(s.file.Fd()), s.flushed, s.end-s.flushed, unix.SYNC_FILE_RANGE_WRITE)
		s.flushed = s.end
	}
	return nil
}

func createFile(dir, name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("pages: %w", err)
	}
	return f, nil
}

// writeIndex writes the index of the records.
func (w *rewriter) writeIndex(l *Listing) (WrittenFile, error) {
	data := slices.Grow(l.indexHeader(w.options.PID), recordSize*len(w.records))
	for i := range w.records {
		data = w.records[i].append(data)
	}
	l.IndexChecksum = checksum(data)
	written := WrittenFile{Name: l.Names(w.options.PID)[0], Bytes: int64(len(data)), Checksum: l.IndexChecksum}
	f, err := createFile(w.options.Dir, written.Name)
	if err != nil {
		return written, err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return written, errors.Join(err, f.Close())
}

// close closes the shards.
func (w *rewriter) close() {
	for _, s := range w.shards {
		if s.file != nil {
			s.file.Close()
		}
	}
}
