package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/image"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/records"
)

// DamageError says what of a checkpoint is not as it was written.
type DamageError struct {
	Checkpoint string // its name
	File       string // its name, or "" if it is the checkpoint as a whole
	Err        error
}

// Error names the checkpoint and the file.
func (e *DamageError) Error() string {
	if e.File == "" {
		return fmt.Sprintf("checkpoint %s is damaged: %v", e.Checkpoint, e.Err)
	}
	return fmt.Sprintf("checkpoint %s is damaged: %s: %v", e.Checkpoint, e.File, e.Err)
}

func (e *DamageError) Unwrap() error { return e.Err }

// Check fails if a checkpoint is damaged, as far as that can be told quickly: every file must
// have its size, and all but the GPU's pages their checksum. Of those pages the indexes and
// the headers are checked. [Store.Verify] checks everything.
func (s *Store) Check(ctx context.Context, c Checkpoint) error {
	return check(ctx, c, 0, func(int) {})
}

// Verify reads all of a checkpoint, from the disk as far as the kernel allows that, and fails
// if anything is not as it was written. The error says what. A checkpoint that is found complete
// is marked as verified, one that is not as damaged. Verify calls read with how many
// bytes it has just read, from several goroutines, unless it is nil.
func (s *Store) Verify(ctx context.Context, c Checkpoint, workers int, read func(bytes int)) error {
	if read == nil {
		read = func(int) {}
	}
	err := check(ctx, c, max(workers, 1), read)
	damage := new(DamageError)
	switch {
	case c.Err != nil, s.Fenced() != nil, err != nil && ctx.Err() != nil:
		return err
	case errors.As(err, &damage):
		return errors.Join(err, s.NoteDamage(c, damage))
	case err != nil:
		return err
	}
	err = damagedKind.Remove(c.Dir)
	if err == nil {
		err = verifiedKind.Write(c.Dir, verified{At: time.Now().UTC(), CRC32C: c.sum})
	}
	if durable.IsFull(err) || errors.Is(err, unix.EROFS) {
		s.log.Warn("A checkpoint is complete, but that cannot be recorded", "checkpoint", c.Name, "error", err)
		err = nil
	}
	return err
}

// isCheckpoint reports whether a directory is a checkpoint, wherever it lies.
func isCheckpoint(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, recordName))
	return err == nil
}

// OpenImage opens the image in a directory, which may be a checkpoint, wherever it lies.
func OpenImage(dir string) *image.Image {
	if !isCheckpoint(dir) {
		return image.Open(dir)
	}
	c, err := Read(dir)
	if err != nil {
		c = Checkpoint{Dir: dir, Err: err}
	}
	return c.Image()
}

// Read reads what a checkpoint is, wherever it lies. The error is [fs.ErrNotExist] if the directory holds none.
func Read(dir string) (Checkpoint, error) {
	c, err := readIn(dir, filepath.Base(dir))
	if errors.Is(err, errGone) {
		err = &fs.PathError{Op: "open", Path: dir, Err: unix.ENOENT}
	}
	return c, err
}

// Image is the image that the checkpoint is. To verify it marks nothing.
func (c Checkpoint) Image() *image.Image {
	if c.IsDump() {
		return c.dumped
	}
	compare := func(ctx context.Context, workers int, read func(bytes int)) error {
		return check(ctx, c, workers, read)
	}
	return image.OpenCheckpoint(c.Dir, imagedir.Digest(c.Files), compare)
}

// check is [Store.Check]. With workers, so many threads read the GPU's pages, too, and all is read from the
// disk.
func check(ctx context.Context, c Checkpoint, workers int, read func(bytes int)) error {
	if c.Err != nil {
		return c.Err
	}
	if c.IsDump() {
		return c.dumped.Check(ctx)
	}
	root, err := os.OpenRoot(c.Dir)
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", c.Name, err)
	}
	defer root.Close()
	damage := func(err error) error {
		switch {
		case ctx.Err() != nil:
			return err
		case durable.HostRemedy(err) != "", errors.Is(err, records.ErrNewer):
			return fmt.Errorf("checkpoint %s: %w", c.Name, err)
		}
		if of := new(imagedir.FileError); errors.As(err, &of) {
			return &DamageError{Checkpoint: c.Name, File: of.Name, Err: of.Err}
		}
		return &DamageError{Checkpoint: c.Name, Err: err}
	}
	if r, sum, err := readRecord(root); err != nil {
		return damage(err)
	} else if sum != c.sum {
		return damage(&imagedir.FileError{Name: recordName, Err: fmt.Errorf("it was replaced by one of %v", r.CreatedAt)})
	}
	m, err := imagedir.ReadManifest(root.Name())
	if err != nil && (!errors.Is(err, fs.ErrNotExist) || c.file(imagedir.ManifestName).Name != "") {
		return damage(&imagedir.FileError{Name: imagedir.ManifestName, Err: err})
	}
	isPage := m.PageNames()
	summed := slices.DeleteFunc(slices.Clone(c.Files), func(f File) bool { return isPage[f.Name] })
	for _, f := range c.Files {
		if workers > 0 {
			durable.DropCache(filepath.Join(c.Dir, f.Name))
		}
		if isPage[f.Name] {
			opened, err := f.Open(root)
			if err != nil {
				return damage(err)
			}
			opened.Close()
		}
		delete(isPage, f.Name)
	}
	if err := imagedir.CheckFiles(ctx, root, summed, cmp.Or(workers, runtime.GOMAXPROCS(0)), read); err != nil {
		return damage(err)
	}
	for name := range isPage {
		err := errors.New("the manifest names it, but the checkpoint was made without it")
		return damage(&imagedir.FileError{Name: name, Err: err})
	}
	for _, p := range m.Processes {
		if err := checkPages(ctx, root.Name(), p, workers, read); err != nil {
			return damage(fmt.Errorf("the GPU state of process %d (%s): %w", p.PID, p.Name, err))
		}
	}
	return nil
}

func checkPages(ctx context.Context, dir string, p imagedir.Process, workers int, read func(bytes int)) error {
	if p.Pages == nil {
		return nil
	}
	reader, err := pages.Open(dir, p.PID, p.Pages)
	if err != nil {
		return err
	}
	defer reader.Close()
	if workers == 0 {
		return nil
	}
	return reader.Verify(ctx, workers, read)
}
