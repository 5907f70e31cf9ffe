package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// openPath opens a file by its path without following a link, only to look at it.
func openPath(path string, flags int) (*os.File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   uint64(unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC | flags),
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openDirectory opens the directory of a file that is to be put back.
func openDirectory(path string) (*os.File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("its directory %v is missing", name(path))
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("its directory %v is another one than at the checkpoint: a part of this path is no directory any more, or a symbolic link", name(path))
	case err != nil:
		return nil, fmt.Errorf("its directory %v: %w", name(path), err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openIn opens a file of a directory, only to look at it. It returns nil if there is none.
func openIn(dir *os.File, base string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(dir.Name(), base)), nil
}

// statOf returns the state of an open file.
func statOf(f *os.File) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	return st, err
}

// statPath is lstat without following a link on the way either.
func statPath(path string) (unix.Stat_t, error) {
	f, err := openPath(path, 0)
	if err != nil {
		return unix.Stat_t{}, err
	}
	defer f.Close()
	return statOf(f)
}

// reopen opens a file that is open already, with other rights. It is the same inode.
func reopen(f *os.File, flags int) (*os.File, error) {
	link := filepath.Join("/proc/self/fd", strconv.Itoa(int(f.Fd())))
	fd, err := unix.Open(link, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open %v: %w", name(f.Name()), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
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
