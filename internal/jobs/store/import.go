package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cucriu/internal/criuimage"
	"cucriu/internal/durable"
	"cucriu/internal/pages"
)

// Listed is a checkpoint as the store of another host is told of it. A checkpoint with the same
// name and checksum there is the same.
type Listed struct {
	Name   string       `json:"name"`
	CRC32C uint32       `json:"crc32c"` // of its record
	Pinned bool         `json:"pinned,omitempty"`
	Files  []ListedFile `json:"files,omitempty"`
}

// ListedFile is a file of a listed checkpoint.
type ListedFile struct {
	Name  string `json:"name"` // in the checkpoint's directory, with slashes
	Bytes int64  `json:"bytes"`
	// SameAs is CHECKPOINT/FILE if this is another name of a file that was listed before.
	SameAs string `json:"same_as,omitempty"`
}

// List lists those checkpoints that can be used and are wanted, the oldest first. Of files with
// several names, only the first is listed with content of its own.
func (s *Store) List(wanted func(name string, crc32c uint32) bool) ([]Listed, error) {
	all, err := s.Checkpoints()
	if err != nil {
		return nil, err
	}
	var listed []Listed
	seen := make(map[pages.FileID]string)
	for _, c := range all {
		if c.Err != nil || c.GivenUp != "" || !wanted(c.Name, c.sum) {
			continue
		}
		l := Listed{Name: c.Name, CRC32C: c.sum, Pinned: c.Pinned}
		names := []string{recordName}
		for _, f := range c.Files {
			names = append(names, f.Name)
		}
		for _, name := range names {
			info, err := os.Lstat(filepath.Join(c.Dir, name))
			if err != nil {
				return nil, fmt.Errorf("checkpoint %s: %w", c.Name, err)
			}
			f := ListedFile{Name: name, Bytes: info.Size()}
			id := pages.Identify(info)
			if f.SameAs = seen[id]; f.SameAs == "" {
				seen[id] = c.Name + "/" + name
			}
			l.Files = append(l.Files, f)
		}
		listed = append(listed, l)
	}
	return listed, nil
}

// Import makes a checkpoint of files that came from another store. from returns the path of the
// file with this number in the list, in the file system of the store; it is moved. The checkpoint
// is on disk afterwards, or absent. [Store.Verify] tells whether its content is right.
func (s *Store) Import(ctx context.Context, l Listed, from func(number int) string) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.mayChange(); err != nil {
		return err
	}
	if err := l.validate(); err != nil {
		return fmt.Errorf("import a checkpoint: %w", err)
	}
	if there, err := s.read(l.Name); err == nil && there.sum == l.CRC32C {
		return nil
	}
	partial := s.checkpointDir(partialPrefix + l.Name)
	err := errors.Join(os.RemoveAll(partial), os.Mkdir(partial, 0o700))
	if err == nil {
		err = s.fill(ctx, partial, l, from)
	}
	if err == nil { // one of that name is of a time line that is no more
		err = os.RemoveAll(s.checkpointDir(l.Name))
	}
	if err == nil {
		err = os.Rename(partial, s.checkpointDir(l.Name))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("import checkpoint %s: %w", l.Name, err), os.RemoveAll(partial))
	}
	return durable.Sync(s.path(checkpointsDir))
}

// validate refuses what leads out of the checkpoint's directory.
func (l Listed) validate() error {
	if !checkpointName.MatchString(l.Name) {
		return fmt.Errorf("%.40q is not the name of a checkpoint", l.Name)
	}
	if len(l.Files) > maxFiles {
		return fmt.Errorf("%s has %d files", l.Name, len(l.Files))
	}
	for _, f := range l.Files {
		if f.Name != recordName && !isFileName(f.Name) {
			return fmt.Errorf("a file of a checkpoint cannot be called %.80q", f.Name)
		}
		if f.SameAs == "" {
			continue
		}
		name, file, _ := strings.Cut(f.SameAs, "/")
		if !checkpointName.MatchString(name) || !isFileName(file) {
			return fmt.Errorf("%.80q is no file of a checkpoint", f.SameAs)
		}
	}
	return nil
}

// fill brings the files of a checkpoint into its partial directory, and waits until they are on
// disk.
func (s *Store) fill(ctx context.Context, partial string, l Listed, from func(number int) string) error {
	root, err := os.OpenRoot(partial)
	if err != nil {
		return err
	}
	defer root.Close()
	dirs := []string{"."}
	for i, f := range l.Files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if dir := filepath.Dir(f.Name); !slices.Contains(dirs, dir) {
			if err := root.MkdirAll(dir, 0o700); err != nil {
				return err
			}
			dirs = append(dirs, dir)
		}
		if err := s.place(partial, l.Name, f, from(i)); err != nil {
			return err
		}
		if err := durable.Sync(filepath.Join(partial, f.Name)); err != nil {
			return err
		}
	}
	if l.Pinned {
		if err := putMark(filepath.Join(partial, pinnedName)); err != nil {
			return err
		}
	}
	for _, dir := range dirs {
		if err := durable.Sync(filepath.Join(partial, dir)); err != nil {
			return err
		}
	}
	return l.isRecordOf(root)
}

// place links or moves a file to where it belongs.
func (s *Store) place(partial, checkpoint string, f ListedFile, from string) error {
	to := filepath.Join(partial, f.Name)
	if f.SameAs == "" {
		return os.Rename(from, to)
	}
	of, file, _ := strings.Cut(f.SameAs, "/")
	dir := s.checkpointDir(of)
	if of == checkpoint {
		dir = partial
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	opened, info, err := criuimage.OpenIn(root, file)
	if err != nil {
		return err
	}
	defer opened.Close()
	if info.Size() != f.Bytes {
		return fmt.Errorf("%s has %d bytes, and not %d: %w", f.SameAs, info.Size(), f.Bytes, fs.ErrInvalid)
	}
	return os.Link(filepath.Join(dir, file), to)
}

// isRecordOf fails unless the record in a directory is the one that was listed, with these files.
func (l Listed) isRecordOf(root *os.Root) error {
	r, sum, err := readRecord(root)
	if err != nil {
		return err
	}
	if sum != l.CRC32C || len(r.Files)+1 != len(l.Files) {
		return errors.New("its record is another one than was announced")
	}
	bytes := make(map[string]int64)
	for _, f := range l.Files {
		bytes[f.Name] = f.Bytes
	}
	for _, f := range r.Files {
		if n, listed := bytes[f.Name]; !listed || n != f.Bytes {
			return fmt.Errorf("%s is missing", f.Name)
		}
	}
	return nil
}
