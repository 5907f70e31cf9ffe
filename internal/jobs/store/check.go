package store

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"

	"cucriu/internal/criuimage"
	"cucriu/internal/image"
	"cucriu/internal/pages"
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
	_, err := s.check(ctx, c, func(int, string) error { return nil })
	return err
}

// check is Check. It calls read for what it reads. It returns the manifest, which is zero if
// there is none.
func (s *Store) check(ctx context.Context, c Checkpoint, read func(n int, file string) error) (image.Manifest, error) {
	if c.Err != nil {
		return image.Manifest{}, c.Err
	}
	root, err := os.OpenRoot(s.checkpointDir(c.Name))
	if err != nil {
		return image.Manifest{}, fmt.Errorf("checkpoint %s: %w", c.Name, err)
	}
	defer root.Close()
	damage := func(file string, err error) error {
		if isGivenUp(ctx, err) {
			return err
		}
		return &DamageError{Checkpoint: c.Name, File: file, Err: err}
	}
	if r, sum, err := readRecord(root); err != nil {
		return image.Manifest{}, damage("", err)
	} else if sum != c.sum {
		return image.Manifest{}, damage(recordName, fmt.Errorf("it was exchanged for one of %v", r.CreatedAt))
	}
	m, err := image.ReadManifest(root.Name())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return image.Manifest{}, damage(image.ManifestName, err)
	}
	isPage := pageNames(m)
	for _, f := range c.Files {
		if err := checkFile(ctx, root, f, !isPage[f.Name], read); err != nil {
			return image.Manifest{}, damage(f.Name, err)
		}
		delete(isPage, f.Name)
	}
	for name := range isPage {
		return image.Manifest{}, damage(name, errors.New("the manifest names it, and the checkpoint was made without it"))
	}
	if err := m.CheckPages(pages.Files{Dir: root.Name()}); err != nil {
		return image.Manifest{}, damage("", err)
	}
	return m, nil
}

// pageNames returns the names of the files of pages that a manifest names.
func pageNames(m image.Manifest) map[string]bool {
	names := make(map[string]bool)
	for _, p := range m.Processes {
		if p.Pages != nil {
			for _, name := range p.Pages.Names(p.PID) {
				names[name] = true
			}
		}
	}
	return names
}

// checkFile fails if a file does not have its size or, with all, its checksum.
func checkFile(ctx context.Context, root *os.Root, want File, all bool, read func(n int, file string) error) error {
	f, info, err := criuimage.OpenIn(root, want.Name)
	if err != nil {
		return err
	}
	defer f.Close()
	if info.Size() != want.Bytes {
		return fmt.Errorf("it has %d bytes, and %d were written", info.Size(), want.Bytes)
	}
	if !all {
		return nil
	}
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	buffer := make([]byte, min(pieceBytes, want.Bytes+1))
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.Read(buffer)
		if n > 0 {
			sum.Write(buffer[:n])
			if err := read(n, want.Name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if got := sum.Sum32(); got != want.CRC32C {
		return fmt.Errorf("its CRC-32C is %08x, and %08x was written", got, want.CRC32C)
	}
	return nil
}
