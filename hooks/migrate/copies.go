package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cucriu/hooks/jobs/files"
	"cucriu/hooks/migrate/prepare"
)

// The destination asks for files that it does not have. Those that the job writes are saved and
// put back by package files, as they are at the standstill. The others travel as copies beside
// the image, by their numbers: no name from the other host becomes a path.

func copyName(n int) string { return fmt.Sprintf("cucriu-copy-%d", n) }

// saveFiles adds to an image the files that the destination has asked for. The job stands still.
func (s *source) saveFiles(ctx context.Context, dir string) error {
	if s.options.Copy == prepare.CopyNone {
		return nil
	}
	if _, err := files.Save(ctx, s.job.RootPID, dir, files.Options{}); err != nil {
		return err
	}
	for _, n := range s.result.Report.Destination.Copies {
		f := s.job.Files[n]
		if f.Written {
			continue
		}
		if err := copyFile(fmt.Sprintf("/proc/%d/root%s", s.job.RootPID, f.Path), filepath.Join(dir, copyName(n)), 0o600); err != nil {
			return fmt.Errorf("copy %s: %w", f.Path, err)
		}
	}
	return nil
}

// copyFile copies a regular file. The new one must not be there yet.
func copyFile(from, to string, mode fs.FileMode) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// putFiles makes the files and directories on this host that it has asked for.
func (d *destination) putFiles(ctx context.Context, dir string) error {
	for _, n := range d.judgement.Makes {
		if err := d.makeDirectory(d.job.SocketDirectories[n]); err != nil {
			return err
		}
	}
	for _, n := range d.judgement.Copies {
		if err := d.putFile(dir, n, d.job.Files[n]); err != nil {
			return fmt.Errorf("copy %s: %w", d.job.Files[n].Path, err)
		}
	}
	_, err := files.PutBack(ctx, dir, files.PutBackOptions{})
	return err
}

func (d *destination) makeDirectory(wanted prepare.Directory) error {
	if err := os.Mkdir(wanted.Path, 0o700); errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	d.made = append(d.made, wanted.Path)
	// The owner first, as another owner takes away special permissions.
	return errors.Join(os.Lchown(wanted.Path, wanted.UID, wanted.GID), unix.Chmod(wanted.Path, wanted.Mode))
}

// putFile makes a file that is not here. One that the job writes is made empty: its content is put
// back afterwards.
func (d *destination) putFile(dir string, n int, f prepare.File) error {
	var err error
	if f.Written {
		var empty *os.File
		if empty, err = os.OpenFile(f.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600); err == nil {
			err = empty.Close()
		}
	} else {
		err = copyFile(filepath.Join(dir, copyName(n)), f.Path, 0o600)
	}
	if f.Written && errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	d.made = append(d.made, f.Path)
	return errors.Join(os.Lchown(f.Path, f.UID, f.GID), unix.Chmod(f.Path, f.Mode&0o7777))
}

// unmake removes what was made for a job that does not come.
func (d *destination) unmake() {
	for len(d.made) > 0 {
		last := len(d.made) - 1
		_ = os.Remove(d.made[last]) // a directory only if it is empty
		d.made = d.made[:last]
	}
}
