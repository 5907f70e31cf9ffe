package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/images"
)

// restorable returns a directory from which a checkpoint is restored. The job's connections to
// the outside are closed in it: whoever was at their other end has gone on, or gone. Those inside
// of the job come back. The notes name what is closed.
func (s *supervisor) restorable(ctx context.Context, dir string) (_ string, notes []string, release func(), err error) {
	release = func() {}
	outside, err := images.OutsideConnections(dir)
	if err != nil || len(outside) == 0 {
		return dir, nil, release, err
	}
	stage, err := s.store.StageDir("") // where links to the checkpoint's files can be made
	if err != nil {
		return "", nil, release, err
	}
	release = func() { _ = s.store.RemoveStage(stage) }
	if err := linkFiles(ctx, dir, stage); err != nil {
		return "", nil, release, fmt.Errorf("prepare the checkpoint for its restore: %w", err)
	}
	for _, c := range outside {
		notes = append(notes, fmt.Sprintf("the connection from %v leads out of the job and comes back closed", c))
	}
	return stage, notes, release, images.WriteFilesWithoutOutside(dir, stage)
}

// linkFiles links the files of an image directory but that of open files, and those of its parent.
func linkFiles(ctx context.Context, dir, to string) error {
	for _, sub := range []string{".", images.ParentName} {
		entries, err := os.ReadDir(filepath.Join(dir, sub))
		if sub != "." && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && sub != "." {
			err = os.Mkdir(filepath.Join(to, sub), 0o700)
		}
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if entry.Name() == images.FilesName || !entry.Type().IsRegular() {
				continue
			}
			if err := linkOrCopy(ctx, filepath.Join(dir, sub, entry.Name()), filepath.Join(to, sub, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyPiece is how much is copied before somebody may have given up, in bytes.
const copyPiece = 64 << 20

// linkOrCopy gives a file a second name, or copies it where the file system has no links.
func linkOrCopy(ctx context.Context, from, to string) error {
	err := os.Link(from, to)
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EMLINK):
	default:
		return err
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	// This is copy_file_range(2), which shares the blocks where the file system can.
	for err == nil {
		if err = context.Cause(ctx); err == nil {
			_, err = io.CopyN(target, source, copyPiece)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, target.Close())
}
