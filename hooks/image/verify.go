package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/imagedir"
)

// Verify reads all of an image, and fails if it is incomplete or damaged. The GPU state is compared
// with its checksums, and criu's images with those that they have (summed); they are decoded where criu reads
// them first, their pages must be there, and the rest is read, because its disk may have lost it. Verify
// calls read with how many bytes it has just read, from several goroutines.
func (i *Image) Verify(ctx context.Context, workers int, read func(bytes int)) (summed bool, err error) {
	if i.check != nil {
		return true, i.check(ctx, max(workers, 1), read)
	}
	dir := i.of.Dir
	_, missing := os.Lstat(filepath.Join(dir, imagedir.SumsName))
	summed = missing == nil
	_, err = criuimage.Read(dir)
	if err == nil {
		_, err = i.of.Whole()
	}
	if err != nil {
		return summed, err
	}
	manifest, err := i.of.Manifest()
	if err == nil {
		err = manifest.MatchImages(dir)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return summed, err
	}
	if _, err := ReadOptions(dir); err != nil {
		return summed, err
	}
	sums, err := i.of.Sums()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return summed, err
	}
	files, err := criuimage.Match(dir, "*")
	if err != nil {
		return summed, err
	}
	for _, path := range files {
		durable.DropCache(path)
	}
	readers, err := manifest.OpenPages(dir)
	if err != nil {
		return summed, err
	}
	defer imagedir.ClosePages(readers)
	for _, reader := range readers {
		if err := reader.Verify(ctx, workers, read); err != nil {
			return summed, err
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return summed, err
	}
	defer root.Close()
	if err := imagedir.CheckFiles(ctx, root, sums, workers, read); err != nil {
		return summed, err
	}
	isRead := manifest.PageNames()
	for _, f := range sums {
		isRead[f.Name] = true
	}
	for _, path := range files {
		if isRead[filepath.Base(path)] && filepath.Dir(path) == filepath.Clean(dir) {
			continue
		}
		if err := readAll(ctx, path, read); err != nil {
			return summed, err
		}
	}
	return len(sums) > 0, nil
}

// readAll reads a file, because its disk may have lost it.
func readAll(ctx context.Context, path string, read func(bytes int)) error {
	info, err := os.Stat(path) // before it is opened: to open a device can have effects
	switch isImage := strings.HasSuffix(path, ".img"); {
	case err != nil && isImage:
		return err
	case err != nil:
		return nil
	case !info.Mode().IsRegular() && isImage:
		return fmt.Errorf("image is damaged: %s is not a regular file", path)
	case !info.Mode().IsRegular():
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for buffer := make([]byte, 1<<20); ; {
		n, err := f.Read(buffer)
		read(n)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return nil
		case durable.HostRemedy(err) != "":
			return err
		case err != nil:
			return fmt.Errorf("image is damaged: %w", err)
		}
	}
}
