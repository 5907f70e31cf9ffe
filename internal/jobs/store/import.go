package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/pages"
)

// Listed is a checkpoint as it is announced to the store of another host. A checkpoint with the same
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

// List lists those checkpoints that can be used, lack no file, and are wanted, the oldest first. Of files with
// several names, only the first is listed with content of its own.
func (s *Store) List(wanted func(name string, crc32c uint32) bool) ([]Listed, error) {
	all, err := s.Checkpoints()
	if err != nil {
		return nil, err
	}
	var listed []Listed
	seen := make(map[pages.FileID]string)
	for _, c := range all {
		if !c.Usable() || !wanted(c.Name, c.sum) {
			continue
		}
		infos, err := statAll(c)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("checkpoint %s: %w", c.Name, err)
		}
		l := Listed{Name: c.Name, CRC32C: c.sum, Pinned: c.Pinned}
		for i, info := range infos {
			f := ListedFile{Name: recordName, Bytes: info.Size()}
			if i > 0 {
				f.Name = c.Files[i-1].Name
			}
			id := pages.Identify(info)
			if f.SameAs = seen[id]; f.SameAs == "" {
				seen[id] = c.Name + "/" + f.Name
			}
			l.Files = append(l.Files, f)
		}
		listed = append(listed, l)
	}
	return listed, nil
}

// statAll looks at the record of a checkpoint, and then at its files.
func statAll(c Checkpoint) (infos []fs.FileInfo, err error) {
	for _, f := range append([]File{{Name: recordName}}, c.Files...) {
		info, err := os.Lstat(filepath.Join(c.Dir, f.Name))
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// Import makes a checkpoint of files that came from another store. from returns the path of the
// file with this number in the list, in the file system of the store; it is moved. A checkpoint that
// is here already stays, if it can be used. The checkpoint is on disk afterwards, or absent.
// [Store.Verify] tells whether its content is right.
func (s *Store) Import(ctx context.Context, l Listed, from func(number int) string) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := errors.Join(s.mayChange(), s.checkName(l.Name)); err != nil {
		return err
	}
	if there, err := s.read(l.Name); err == nil && there.sum == l.CRC32C && there.Usable() {
		return nil
	}
	err := s.create(ctx, l.Name, func(partial string) error { return s.receive(ctx, partial, l, from) })
	if err != nil {
		return fmt.Errorf("import checkpoint %s: %w", l.Name, err)
	}
	return nil
}

// receive brings the files of a checkpoint into its partial directory.
func (s *Store) receive(ctx context.Context, partial string, l Listed, from func(number int) string) error {
	root, err := os.OpenRoot(partial)
	if err != nil {
		return err
	}
	defer root.Close()
	bytes := make(map[string]int64)
	for i, f := range l.Files {
		if f.Name != recordName && !isFileName(f.Name) {
			return fmt.Errorf("invalid name of a checkpoint file: %.80q", f.Name)
		}
		if err := cmp.Or(ctx.Err(), root.MkdirAll(filepath.Dir(f.Name), 0o700)); err != nil {
			return err
		}
		path := filepath.Join(partial, f.Name)
		if f.SameAs == "" {
			err = os.Rename(from(i), path)
		} else {
			err = s.linkSame(partial, l.Name, f)
		}
		if err != nil {
			return err
		}
		bytes[f.Name] = f.Bytes
	}
	// The record must be the one that was announced, with these files.
	r, sum, err := readRecord(root)
	if err != nil {
		return err
	}
	if sum != l.CRC32C || len(r.Files)+1 != len(l.Files) {
		return errors.New("its record is not the one that was announced")
	}
	for _, f := range r.Files {
		if n, listed := bytes[f.Name]; !listed || n != f.Bytes {
			return fmt.Errorf("%s is missing", f.Name)
		}
	}
	if l.Pinned {
		return pinnedKind.Write(partial, time.Now().UTC())
	}
	return nil
}

// linkSame makes a file another name of one that is here already.
func (s *Store) linkSame(partial, checkpoint string, f ListedFile) error {
	of, file, _ := strings.Cut(f.SameAs, "/")
	if !checkpointName.MatchString(of) || !isFileName(file) {
		return fmt.Errorf("%.80q is not a file of the checkpoint", f.SameAs)
	}
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
	return os.Link(filepath.Join(dir, file), filepath.Join(partial, f.Name))
}
