package files

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Sync waits until the files of which the checkpoint in dir holds only the size are on disk.
// Otherwise they could be shorter after a crash of the host, and the checkpoint could not be
// restored. It is called before the checkpoint counts as complete. The job may run.
func Sync(ctx context.Context, dir string) error {
	l, err := readList(dir)
	if err != nil {
		return err
	}
	for _, f := range l.Files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if f.Use != useAppend && f.Use != useRead {
			continue
		}
		if err := f.sync(); err != nil {
			return fmt.Errorf("wait until %v is on disk: %w", f.Paths[0], err)
		}
	}
	return nil
}

func (f file) sync() error {
	now, err := openPath(string(f.Paths[0]), 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil // the job has removed or moved it
	}
	if err != nil {
		return err
	}
	defer now.Close()
	st, err := statOf(now)
	if err != nil || inodeOf(st) != (inode{f.Dev, f.Inode}) {
		return err
	}
	readable, err := reopen(now, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer readable.Close()
	if err := readable.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EROFS) {
		return err
	}
	return nil
}
