package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// target is a path at which a file is to be put back, and what is there.
type target struct {
	path name
	dir  *os.File // its directory
	base string
	now  *os.File // what is there, opened to look at only; nil if nothing is
	stat unix.Stat_t
}

// openTarget looks at what is at a path. It follows no symbolic link on the way. If the directory is
// not there any more, this is [fs.ErrNotExist].
func openTarget(path name) (*target, error) {
	if err := path.checkAbsolute(); err != nil {
		return nil, err
	}
	folder, base := filepath.Split(string(path))
	folder = filepath.Clean(folder)
	dir, err := openAt(unix.AT_FDCWD, folder, unix.O_RDONLY|unix.O_DIRECTORY)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, goneError{fmt.Errorf("%v: its directory %v is missing", path, name(folder))}
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, goneError{fmt.Errorf("%v: its directory %v is not the one of the checkpoint: a part of this path is no longer a directory, or is a symbolic link", path, name(folder))}
	case err != nil:
		return nil, fmt.Errorf("%v: its directory %v: %w", path, name(folder), err)
	}
	t := &target{path: path, dir: dir, base: base}
	t.now, err = openAt(int(dir.Fd()), base, unix.O_PATH)
	if err == nil {
		err = unix.Fstat(int(t.now.Fd()), &t.stat)
	} else if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("%v: %w", path, err)
	}
	return t, nil
}

// goneError says that a directory is not there any more.
type goneError struct{ error }

func (goneError) Is(err error) bool { return err == fs.ErrNotExist }

func openAt(dir int, path string, flags uint64) (*os.File, error) {
	fd, err := unix.Openat2(dir, path, &unix.OpenHow{
		Flags:   flags | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (t *target) Close() {
	if t.now != nil {
		t.now.Close()
	}
	t.dir.Close()
}

// withFile calls do with the file that is there, opened for reading or writing.
func (t *target) withFile(flags int, do func(*os.File) error) error {
	f, err := os.OpenFile(ofDescriptor(t.now), flags|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open %v: %w", t.path, errors.Unwrap(err))
	}
	defer f.Close()
	return do(f)
}

func ofDescriptor(f *os.File) string {
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(f.Fd())))
}

// asideInfix is between the name of a file and the time at which what is newer was kept.
const asideInfix = ".cucriu-"

const partialSuffix = "partial" // instead of the time, while a file is being written

// asidePrefix is how the names of what is kept begin. A name must not become too long.
func asidePrefix(base string) string {
	const longest = 255 - len(asideInfix) - len("20060102-150405-00000")
	return base[:min(len(base), longest)] + asideInfix
}

// writeBeside writes a file that is to have another name in the directory of the target. It has that
// once it is on disk. Nothing must be there.
func (t *target) writeBeside(base string, meta metadata, step stepper, write func(*os.File) error) error {
	if err := t.removePartial(); err != nil {
		return err
	}
	partial := asidePrefix(t.base) + partialSuffix
	f, err := openNew(int(t.dir.Fd()), partial)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := step("partial"); err != nil {
		return err
	}
	err = f.Truncate(meta.Size)
	if err == nil {
		err = write(f)
	}
	if err == nil {
		err = f.Chown(int(meta.UID), int(meta.GID))
	}
	if err == nil {
		err = setModeAndTime(f, meta)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return errors.Join(err, t.removePartial())
	}
	if err := step("written beside"); err != nil {
		return err
	}
	at := int(t.dir.Fd())
	err = unix.Renameat2(at, partial, at, base, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) { // NFS, for one, does not know this
		if err = unix.Linkat(at, partial, at, base, 0); err == nil {
			err = unix.Unlinkat(at, partial, 0)
		}
	}
	if err != nil {
		return err
	}
	return t.dir.Sync()
}

func openNew(dir int, base string) (*os.File, error) {
	fd, err := unix.Openat(dir, base, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	return os.NewFile(uintptr(fd), base), err
}

// removePartial removes what a killed PutBack was about to write.
func (t *target) removePartial() error {
	err := unix.Unlinkat(int(t.dir.Fd()), asidePrefix(t.base)+partialSuffix, 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s in %v: %w", asidePrefix(t.base)+partialSuffix, name(t.dir.Name()), err)
	}
	return nil
}

func setModeAndTime(f *os.File, meta metadata) error {
	if err := f.Chmod(fileMode(meta.Mode)); err != nil {
		return err
	}
	return os.Chtimes(ofDescriptor(f), time.Time{}, mtime(meta))
}

func isRegular(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }

// inode identifies a file on this host.
type inode struct{ dev, ino uint64 }

func inodeOf(st unix.Stat_t) inode { return inode{uint64(st.Dev), st.Ino} }

// what says what kind of file something is.
func what(st unix.Stat_t) string {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "a regular file"
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFLNK:
		return "a symbolic link"
	case unix.S_IFIFO:
		return "a named pipe"
	case unix.S_IFSOCK:
		return "a socket"
	}
	return "a device"
}

// statPath is lstat without following a link on the way either.
func statPath(path string) (st unix.Stat_t, err error) {
	f, err := openAt(unix.AT_FDCWD, path, unix.O_PATH)
	if err != nil {
		return st, err
	}
	defer f.Close()
	return st, unix.Fstat(int(f.Fd()), &st)
}
