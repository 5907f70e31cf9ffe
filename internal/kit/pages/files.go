package pages

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// createFile creates a file, which must not exist yet.
func createFile(dir, name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("pages: %w", err)
	}
	return f, nil
}

// openFiles opens the files that a listing names in directories for reading.
func openFiles(dirs []string, pid int, l *Listing) ([]*os.File, error) {
	var files []*os.File
	for _, name := range l.Names(pid) {
		var f *os.File
		err := fs.ErrNotExist
		for i := 0; i < len(dirs) && errors.Is(err, fs.ErrNotExist); i++ {
			f, err = os.OpenFile(filepath.Join(dirs[i], name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		}
		if err != nil {
			_ = closeAll(files)
			return nil, fmt.Errorf("the image is not complete: %w", err)
		}
		files = append(files, f)
	}
	return files, nil
}

func closeAll(files []*os.File) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Names returns the names of all files of pages in a directory, of all processes and dumps.
func Names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	var names []string
	for _, entry := range entries {
		if filePattern.MatchString(entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	return names, err
}

// Remove removes the files that a listing names in a directory, but for those of other dumps. A file that does not exist
// is no error.
func Remove(dir string, pid int, l *Listing) error {
	names := l.Names(pid)
	own := names[:1]
	for i := range l.ShardBytes {
		if l.origin(pid, i).ID == l.ID {
			own = append(own, names[1+i])
		}
	}
	return removeAll(dir, own)
}

// RemoveExcept removes all files of pages in a directory except those with the names in keep.
func RemoveExcept(dir string, keep map[string]bool) error {
	names, err := Names(dir)
	if err != nil {
		return err
	}
	return removeAll(dir, slices.DeleteFunc(names, func(name string) bool { return keep[name] }))
}

func removeAll(dir string, names []string) error {
	var errs []error
	for _, name := range names {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// OpenHeld opens files that another process, the holder, has open as consecutive
// descriptors starting at first. The names of the files may be gone.
func OpenHeld(holder, first, process int, l *Listing) (*Reader, error) {
	var files []*os.File
	for i, name := range l.Names(process) {
		fd, err := unix.Open(filepath.Join("/proc", strconv.Itoa(holder), "fd", strconv.Itoa(first+i)), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			_ = closeAll(files)
			return nil, fmt.Errorf("%s, which process %d holds: %w", name, holder, err)
		}
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	return newReader(files, process, l)
}

// FileID identifies a file or directory independently of its name.
type FileID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// Identify returns the identity of a file, or the zero FileID if info has none.
func Identify(info fs.FileInfo) FileID {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return FileID{}
	}
	return FileID{Device: stat.Dev, Inode: stat.Ino}
}
