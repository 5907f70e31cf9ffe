package pages

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ownShard is a shard that [Rewrite] writes. It is created when it gets its first chunk.
type ownShard struct {
	origin  Origin
	file    *os.File
	end     int64
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
