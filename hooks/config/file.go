package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxSize is far above any real configuration file.
const maxSize = 1 << 20 // bytes

// readTrusted reads a file that nobody but root, or the user that we run as, can have written.
// It follows links: Kubernetes mounts every configuration as a chain of them. It checks the
// file that was opened and the directories above it, not the names that led there. exists is
// false if there is nothing at path at all.
func readTrusted(path string) (data []byte, exists bool, err error) {
	fail := func(cause, remedy string, err error) ([]byte, bool, error) {
		return nil, true, &Error{Source: path, Cause: cause, Remedy: remedy, Err: err}
	}
	// O_NONBLOCK, because opening a FIFO must not wait for a writer.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return nil, false, nil
		}
		return fail("it is a dangling symbolic link", "restore what it points to, or remove it", nil)
	}
	if err != nil {
		return fail("it cannot be opened", "make it a file that this user can read", err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()

	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail("it cannot be examined", "", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fail("it is not a regular file", "make it one, or a symbolic link to one", nil)
	}
	if cause, remedy := distrust(st, os.Geteuid()); cause != "" {
		return fail("the file "+cause, remedy+" "+path, nil)
	}
	if err := checkDirectories(path, fd); err != nil {
		return nil, true, err
	}
	data, err = io.ReadAll(io.LimitReader(file, maxSize+1))
	if err != nil {
		return fail("it cannot be read", "", err)
	}
	if len(data) > maxSize {
		return fail(fmt.Sprintf("it is larger than %d bytes", maxSize), "a configuration has only a few lines: is this the right file?", nil)
	}
	return data, true, nil
}

// checkDirectories checks the directories above the open file, by its resolved path: anybody
// who can write to one of them can put another file in its place.
func checkDirectories(path string, fd int) error {
	resolved, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return &Error{Source: path, Cause: "its path in the file system cannot be found", Remedy: "mount /proc", Err: err}
	}
	for dir := filepath.Dir(resolved); ; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err != nil {
			return &Error{Source: path, Cause: fmt.Sprintf("the directory %s cannot be examined", dir), Remedy: "was the file replaced just now? try again", Err: err}
		}
		if cause, remedy := distrust(st, os.Geteuid()); cause != "" {
			return &Error{Source: path, Cause: fmt.Sprintf("the directory %s %s", dir, cause), Remedy: remedy + " " + dir}
		}
		if dir == "/" || dir == "." {
			return nil
		}
	}
}

// distrust says why another user could have changed the file or directory that st describes,
// and gives the command that mends it. In a sticky directory, such as /tmp, only the owners of
// files can replace them.
func distrust(st unix.Stat_t, euid int) (cause, remedy string) {
	if st.Uid != 0 && int(st.Uid) != euid {
		return fmt.Sprintf("belongs to user %d, and not to root or to the user that reads it", st.Uid), "run: chown root"
	}
	sticky := st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0
	if st.Mode&0o022 != 0 && !sticky {
		return fmt.Sprintf("can be written by its group or by others (mode %04o)", st.Mode&0o7777), "run: chmod go-w"
	}
	return "", ""
}
