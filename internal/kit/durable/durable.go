// Package durable writes files that must survive a crash of the host.
package durable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Castagnoli is the polynomial of all our checksums of files.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Write replaces the content of a file. After a crash the file holds either the old content or the new,
// complete. Only its owner can read it.
func Write(path string, data []byte) error {
	dir := filepath.Dir(path)
	if err := renameio.WriteFile(path, data, 0o600, renameio.WithTempDir(dir)); err != nil {
		return err
	}
	return Sync(dir)
}

// Replace is [Write] for a file that means nothing once the host has ended: it need not be on disk.
func Replace(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path))
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = cmp.Or(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// ReadFile reads a file that somebody else may have put there. It follows no link at its end, waits
// for no pipe, and reads no more than limit bytes.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, limit)
}

// ReadAll reads a regular file of at most limit bytes.
func ReadAll(f *os.File, limit int64) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, &fs.PathError{Op: "read", Path: f.Name(), Err: unix.EISDIR}
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("%s is not a regular file of at most %d bytes", f.Name(), limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// OnFullDisk writes over a file, which has its room, if err says that the disk was too full to replace
// it.
func OnFullDisk(err error, path string, data []byte) error {
	if !IsFull(err) {
		return err
	}
	f, openErr := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if openErr != nil {
		return err
	}
	defer f.Close()
	if _, inPlace := f.WriteAt(data, 0); inPlace != nil {
		return err
	}
	return errors.Join(f.Truncate(int64(len(data))), f.Sync())
}

// IsFull reports whether an error says that a disk, or a quota, is full.
func IsFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// HostRemedy says what to do about an error which says only that a file cannot be opened or read here and now, and
// nothing of what is in it; "" if it is another error.
func HostRemedy(err error) string {
	is := func(numbers ...unix.Errno) bool {
		return slices.ContainsFunc(numbers, func(number unix.Errno) bool { return errors.Is(err, number) })
	}
	switch {
	case is(unix.EMFILE):
		return "raise the limit of open files (ulimit -n)"
	case is(unix.ENFILE):
		return "raise the host's limit of open files (sysctl fs.file-max)"
	case is(unix.ENOMEM):
		return "free memory on this host"
	case is(unix.EACCES, unix.EPERM) && os.Geteuid() != 0:
		return "run as root"
	case is(unix.EACCES, unix.EPERM):
		return "let root read it"
	case is(unix.ETIMEDOUT):
		return "try again when its file system answers"
	}
	return ""
}

// WriteNew writes a file that is to stay as it is, unless it is there.
func WriteNew(path string, data []byte, mode os.FileMode) error {
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	dir := filepath.Dir(path)
	if err := renameio.WriteFile(path, data, mode, renameio.WithTempDir(dir), renameio.IgnoreUmask()); err != nil {
		return err
	}
	return Sync(dir)
}

// IsNoexec reports whether no program can be executed from a directory.
func IsNoexec(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && fs.Flags&unix.ST_NOEXEC != 0
}

// Sync waits until a file, or the names in a directory, are on disk.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("fsync %s: %w", path, err)
	}
	return nil
}

// Remove removes a file, which may be missing already, and waits until that is on disk.
func Remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, Sync(filepath.Dir(path)))
}

// SyncTree waits until all files and names in a directory are on disk. Several at once share the work of
// the file system.
func SyncTree(ctx context.Context, dir string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && (entry.IsDir() || entry.Type().IsRegular()) {
			group.Go(func() error { return cmp.Or(ctx.Err(), Sync(path)) })
		}
		return err
	})
	return errors.Join(err, group.Wait())
}
