package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/fault"
)

// maxLinks is how many symbolic links a path may lead through, as in the kernel.
const maxLinks = 40

// CheckPath fails if somebody else than root can put something else at a path: who owns a
// directory on the path, or can write there, can rename what is in it. What does not exist
// yet must be made by [MakeDirs]. The last elements of the path, so many, are not looked at. what
// says in the error what it is.
func CheckPath(what, path string, last int) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	at, rest := "/", split(path)
	for links := 0; ; {
		if err := checkElement(what, path, at); err != nil || len(rest) <= last {
			return err
		}
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		target, err := os.Readlink(next)
		switch {
		case errors.Is(err, unix.EINVAL): // no link
			at = next
			continue
		case errors.Is(err, os.ErrNotExist):
			return nil
		case err != nil:
			return fmt.Errorf("%s %s: %w", what, path, err)
		}
		if links++; links > maxLinks {
			return fmt.Errorf("%s %s: %w", what, path, unix.ELOOP)
		}
		if err := checkElement(what, path, next); err != nil {
			return err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(split(target), rest...)
	}
}

func split(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}

// checkElement checks one directory or symbolic link of a path.
func checkElement(what, path, at string) error {
	var stat unix.Stat_t
	if err := unix.Lstat(at, &stat); err != nil {
		return fmt.Errorf("%s %s: %w", what, path, os.NewSyscallError("lstat", err))
	}
	who := ""
	switch isLink := stat.Mode&unix.S_IFMT == unix.S_IFLNK; {
	case stat.Uid != 0:
		who = fmt.Sprintf("belongs to user %d", stat.Uid)
	case isLink:
	case stat.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s %s: %s: %w", what, path, at, unix.ENOTDIR)
	case stat.Mode&0o022 != 0 && stat.Mode&unix.S_ISVTX == 0:
		who = fmt.Sprintf("can be written by users other than root (mode %#o)", stat.Mode&0o7777)
	}
	if who == "" {
		return nil
	}
	return fault.New(
		fmt.Sprintf("%s %s can be replaced by users other than root, and root restores its content: %s %s", what, path, at, who),
		"name one that only root can change, including all parent directories")
}

// MakeDirs makes a directory that only its owner can read, and those above it that are missing. It
// returns those that it has made, for [RemoveDirs]. Nobody else can put something else in their place.
func MakeDirs(what, dir string) (made []string, err error) {
	var missing []string
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		if _, err := os.Lstat(at); !errors.Is(err, os.ErrNotExist) {
			break
		}
		missing = append(missing, at)
	}
	defer func() {
		if err != nil {
			RemoveDirs(made)
			made = nil
		}
	}()
	if len(missing) > 0 {
		if err := CheckPath(what, filepath.Dir(dir), 0); err != nil {
			return nil, err
		}
	}
	for _, at := range slices.Backward(missing) {
		mode := os.FileMode(0o755)
		if at == missing[0] {
			mode = 0o700
		}
		switch err := os.Mkdir(at, mode); {
		case err == nil:
			made = append(made, at)
		case !errors.Is(err, os.ErrExist):
			return made, fmt.Errorf("%s: %w", what, err)
		case CheckPath(what, at, 0) != nil: // somebody was quicker
			return made, CheckPath(what, at, 0)
		}
		if err := Sync(filepath.Dir(at)); err != nil {
			return made, fmt.Errorf("%s: %w", what, err)
		}
	}
	return made, nil
}

// RemoveDirs removes directories that [MakeDirs] has made, those that are empty.
func RemoveDirs(made []string) {
	for _, dir := range slices.Backward(made) {
		_ = os.Remove(dir)
	}
}

// Existing returns dir, or its nearest parent that exists if dir does not.
func Existing(dir string) string {
	for dir != "" {
		_, err := os.Stat(dir)
		absent := errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) // its parent may be a file
		if !absent || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// KeepsInMemory reports whether a file system, given by its magic number, keeps what is written
// in memory and cannot give that memory back. The page cache of a disk can be given back, in a
// control group too: there the writer waits for the disk.
func KeepsInMemory(magic int64) bool {
	return slices.Contains([]int64{unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.HUGETLBFS_MAGIC}, magic)
}
