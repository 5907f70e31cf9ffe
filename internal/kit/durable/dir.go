package durable

import (
	"os"

	"golang.org/x/sys/unix"
)

// OpenDir opens a directory, to reach what is in it or to mount something there, and follows no symbolic link on the
// way: whoever may write in a directory above it cannot lead root elsewhere.
func OpenDir(path string) (*os.File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open directory", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
