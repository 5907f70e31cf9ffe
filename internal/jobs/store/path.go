package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/fault"
)

// maxLinks is how many symbolic links a path may lead through, as in the kernel.
const maxLinks = 40

// CheckDir fails if somebody else than root can change a directory, or put something else in its
// place. what says in the error what it is.
func CheckDir(what, dir string) error { return checkPath(what, dir, 0) }

// checkPath fails if somebody else than root can put something else at a path: who owns a
// directory on the path, or can write there, can rename what is in it. What does not exist
// yet can be made by root only. The last elements of the path are not looked at.
func checkPath(what, path string, last int) error {
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
