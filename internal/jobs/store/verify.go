package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"cucriu/internal/image"
	"cucriu/internal/pages"
)

// Verify reads all of a checkpoint, from the disk as far as the kernel allows that, and fails
// if anything is not as it was written. The error says what. A checkpoint that is found whole
// is marked as verified; on one that is not, the mark is removed. progress may be nil; it is
// called from one goroutine at a time.
func (s *Store) Verify(ctx context.Context, c Checkpoint, workers int, progress func(Progress)) error {
	if c.Err != nil {
		return c.Err
	}
	err := s.verify(ctx, c, workers, progress)
	if s.Fenced() != nil {
		return err // no mark
	}
	if err == nil {
		err = s.markVerified(c)
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			s.log.Warn("A checkpoint is whole, but the disk has no room to note that", "checkpoint", c.Name)
			err = nil
		}
		return err
	}
	if !isGivenUp(ctx, err) {
		err = errors.Join(err, s.unmarkVerified(c))
	}
	return err
}

func (s *Store) verify(ctx context.Context, c Checkpoint, workers int, progress func(Progress)) error {
	dir := s.checkpointDir(c.Name)
	for _, f := range c.Files {
		forget(filepath.Join(dir, f.Name))
	}
	var mutex sync.Mutex
	now := Progress{Total: c.Bytes}
	read := func(n int, file string) error {
		if err := s.pay(ctx, n); err != nil {
			return err
		}
		mutex.Lock()
		defer mutex.Unlock()
		now.Done, now.File = now.Done+int64(n), file
		if progress != nil {
			progress(now)
		}
		return nil
	}
	m, err := s.check(ctx, c, read)
	if err != nil {
		return err
	}
	for _, p := range m.Processes {
		if p.Pages == nil {
			continue
		}
		err := verifyPages(ctx, dir, p, workers, read)
		if err != nil && !isGivenUp(ctx, err) {
			err = &DamageError{Checkpoint: c.Name, Err: fmt.Errorf("the GPU state of process %d (%s): %w", p.PID, p.Name, err)}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// forget drops a file from the page cache, so that it is read from the disk.
func forget(path string) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return // the check says so
	}
	defer f.Close()
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

func verifyPages(ctx context.Context, dir string, p image.Process, workers int, read func(n int, file string) error) error {
	files, err := pages.OpenFiles(dir, p.PID, p.Pages)
	if err != nil {
		return err
	}
	reader, err := pages.NewReader(files, p.PID, p.Pages)
	if err != nil {
		return err
	}
	defer reader.Close()
	return reader.Verify(ctx, workers, read)
}
