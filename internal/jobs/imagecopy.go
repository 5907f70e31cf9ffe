package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/units"
)

// With --copy-image a job has a copy of its image in its own directory, and relies on that alone. Until the copy is
// complete, the image has the mark that keeps it, and each start begins the copy anew.

const copiedImage = "image-copy" // in D, and with .partial until it is complete

// removeCopiedImage removes the copy, or what there is of it.
func removeCopiedImage(dir string) error {
	path := filepath.Join(dir, copiedImage)
	return errors.Join(os.RemoveAll(path), os.RemoveAll(path+".partial"))
}

// openImage reads the job's image again, which must be the same: its copy, if that is complete.
func (s *starter) openImage() (c store.Checkpoint, isCopy bool, err error) {
	from, path := s.record.Image, filepath.Join(s.Dir, copiedImage)
	if !from.Copy {
		c, err = from.open()
		return c, false, err
	}
	if c, err = store.ReadImage(path); errors.Is(err, fs.ErrNotExist) {
		c, err = from.open()
		return c, false, err
	}
	if err == nil && c.Image().ID() != from.ID {
		err = errors.New("it is another image")
	}
	return c, true, s.aboutCopy(byMaker(path, err))
}

// aboutCopy says of an error that it is about the copy, and what can be done.
func (s *starter) aboutCopy(err error) error {
	if err == nil || !s.record.Image.Copy {
		return err
	}
	path := filepath.Join(s.Dir, copiedImage)
	return fault.Because(err, fmt.Sprintf("its copy %s: %v", path, err), "remove the copy to have the image copied again")
}

// copyImage copies the image, compares the copy with the checksums of the image, and gives it its name.
func (s *starter) copyImage(ctx context.Context, c store.Checkpoint) (copied store.Checkpoint, err error) {
	path := filepath.Join(s.Dir, copiedImage)
	partial := path + ".partial"
	if err := errors.Join(os.RemoveAll(partial), os.Mkdir(partial, 0o700)); err != nil {
		return c, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(partial))
		}
	}()
	var stat unix.Statfs_t
	if err := unix.Statfs(partial, &stat); err != nil {
		return c, err
	}
	// A file system on which copies share their blocks has room for more than it has free.
	if free := int64(stat.Bavail) * stat.Bsize; free < c.Bytes && !clones(c.Dir, partial) {
		return c, fault.Because(unix.ENOSPC, fmt.Sprintf("its copy takes %s, and %s has %s free", units.Size(c.Bytes), s.Dir,
			units.Size(free)), "free more there, or leave out --copy-image")
	}
	from, err := durable.OpenDir(c.Dir)
	if err != nil {
		return c, err
	}
	defer from.Close()
	before := int64(stat.Bavail)
	over := s.sayEvery(func() string {
		_ = unix.Statfs(partial, &stat) // others may use the disk, too
		done := max(0, before-int64(stat.Bavail)) * stat.Bsize
		return fmt.Sprintf("copying the image: about %s of %s", units.Size(min(done, c.Bytes)), units.Size(c.Bytes))
	})
	err = copyTree(ctx, from, partial)
	if err == nil {
		err = failpoint.Hit(ctx, "image.copy.copied", 0)
	}
	if err == nil {
		err = durable.SyncTree(ctx, partial) // so that it is read from the disk
	}
	over()
	if err == nil {
		copied, err = store.ReadImage(partial)
	}
	if err == nil && copied.Image().ID() != c.Image().ID() {
		err = errors.New("the image was replaced while it was copied")
	}
	if err != nil {
		return c, err
	}
	var read atomic.Int64
	over = s.sayEvery(func() string {
		return fmt.Sprintf("comparing the copy of the image: %s of %s", units.Size(read.Load()), units.Size(copied.Bytes))
	})
	_, err = copied.Image().Verify(ctx, runtime.GOMAXPROCS(0), func(bytes int) { read.Add(int64(bytes)) })
	over()
	if err == nil {
		err = failpoint.Hit(ctx, "image.copy.compared", 0)
	}
	if err == nil {
		err = os.Rename(partial, path)
	}
	if err == nil {
		err = durable.Sync(s.Dir)
	}
	if err == nil {
		err = failpoint.Hit(ctx, "image.copy.named", 0)
	}
	if err != nil {
		return c, err
	}
	copied, err = store.ReadImage(path)
	return copied, err
}

// sayEvery tells the user every few seconds how far something is.
func (s *starter) sayEvery(text func() string) (over func()) {
	tick, done, ended := time.NewTicker(10*time.Second), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-tick.C:
				s.inform(text())
			case <-done:
				return
			}
		}
	}()
	return func() {
		tick.Stop()
		close(done)
		<-ended
	}
}

// clones reports whether copies of the files in a directory share their blocks in another one.
func clones(from, to string) bool {
	entries, _ := os.ReadDir(from)
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		f, err := os.Open(filepath.Join(from, entry.Name()))
		if err != nil {
			return false
		}
		defer f.Close()
		trial, err := os.CreateTemp(to, "")
		if err != nil {
			return false
		}
		defer os.Remove(trial.Name())
		defer trial.Close()
		return unix.IoctlFileClone(int(trial.Fd()), int(f.Fd())) == nil
	}
	return false
}
