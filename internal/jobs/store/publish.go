package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/durable"
	"cucriu/internal/failpoint"
)

// Progress says how far a publication or a verification is.
type Progress struct {
	Done, Total int64 // bytes
	File        string
}

// The steps of a change, at which tests interrupt it.
const (
	stepBegin    = "store.begin"    // the partial directory exists
	stepFile     = "store.file"     // a file is in it, or the pages of a process
	stepRecord   = "store.record"   // all files are in it
	stepRename   = "store.rename"   // all of it is on disk
	stepRenamed  = "store.renamed"  // it has its name
	stepSetAside = "store.setaside" // a checkpoint to be removed has lost its name
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
// complete and on disk, or absent. progress may be nil; it is called from one goroutine at a
// time.
//
// If the disk is nearly full, Publish fails with [unix.ENOSPC] before it is full: the job may
// write to the same one.
func (s *Store) Publish(ctx context.Context, staged string, info Info, progress func(Progress)) (Checkpoint, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.mayChange(); err != nil {
		return Checkpoint{}, err
	}
	if err := info.Validate(); err != nil {
		return Checkpoint{}, fmt.Errorf("publish a checkpoint: %w", err)
	}
	name, err := s.nextName()
	var warnings []string
	if err == nil {
		warnings, err = s.publish(ctx, name, staged, info, progress)
	}
	if err != nil {
		return Checkpoint{}, fmt.Errorf("publish checkpoint %s: %w", name, err)
	}
	c, err := s.Checkpoint(name)
	c.Warnings = warnings
	c.Shared = c.Bytes - c.New // the staged directory may still have other files of it
	return c, err
}

func (s *Store) publish(ctx context.Context, name, staged string, info Info, progress func(Progress)) (warnings []string, err error) {
	partial := s.checkpointDir(partialPrefix + name)
	if err := os.Mkdir(partial, 0o700); err != nil {
		return nil, err
	}
	warnings, err = s.drain(ctx, partial, staged, info, progress)
	if err == nil {
		err = s.step(ctx, stepRename)
	}
	if err == nil {
		err = s.Fenced()
	}
	if err == nil {
		err = os.Rename(partial, s.checkpointDir(name))
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(partial))
	}
	if err := s.step(ctx, stepRenamed); err != nil {
		return nil, err
	}
	return warnings, durable.Sync(s.path(checkpointsDir))
}

// drain fills a partial directory, and waits until all of it is on disk.
func (s *Store) drain(ctx context.Context, partial, staged string, info Info, progress func(Progress)) (warnings []string, err error) {
	if err := s.step(ctx, stepBegin); err != nil {
		return nil, err
	}
	from, err := os.OpenRoot(staged)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	to, err := os.OpenRoot(partial)
	if err != nil {
		return nil, err
	}
	defer to.Close()
	files, dirs, total, err := listStaged(from)
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		if err := to.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
	}
	d := &drainer{store: s, ctx: ctx, from: from, to: to, dir: partial, total: total, progress: progress, names: make(map[string]bool), dirs: []string{"."}}
	if err := d.image(files); err != nil {
		return nil, err
	}
	if err := d.sync(); err != nil {
		return nil, err
	}
	r := record{Info: info, Generation: s.owner.Generation, NewBytes: d.written, Files: d.added}
	if err := s.step(ctx, stepRecord); err != nil {
		return nil, err
	}
	if err := writeRecord(to, r); err != nil {
		return nil, fmt.Errorf("%s: %w", recordName, err)
	}
	for _, dir := range append(dirs, d.dirs...) {
		if err := durable.Sync(filepath.Join(partial, dir)); err != nil {
			return nil, err
		}
	}
	return d.warnings, nil
}

func writeRecord(to *os.Root, r record) error {
	if err := r.validate(); err != nil {
		return err
	}
	data, _, err := r.encode()
	if err != nil {
		return err
	}
	if len(data) > maxRecordBytes {
		return fmt.Errorf("it has %d bytes", len(data))
	}
	f, err := to.OpenFile(recordName, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// listStaged returns the names of all files and directories below a directory, and how many
// bytes the files have. It refuses everything else.
func listStaged(from *os.Root) (files, dirs []string, total int64, err error) {
	err = fs.WalkDir(from.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name == ".":
			return nil
		case !isFileName(name):
			return fmt.Errorf("the staged image: a file of a checkpoint cannot be called %.80q", name)
		case entry.IsDir():
			dirs = append(dirs, name)
			return nil
		case !entry.Type().IsRegular():
			return fmt.Errorf("the staged image: %s is neither a file nor a directory", name)
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		files = append(files, name)
		total += info.Size()
		return nil
	})
	slices.Sort(files)
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("the staged image is empty: %w", unix.ENOENT)
	}
	return files, dirs, total, err
}
