package files

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Kept is what PutBack has kept of a file that was newer than the checkpoint.
type Kept struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// FindKept looks at what was kept under a path. It fails with [fs.ErrNotExist] if that is gone, or
// if something else is there now.
func FindKept(path string) (Kept, error) {
	kept := Kept{Path: path}
	return kept, withKept(path, func(_ int, st unix.Stat_t) error {
		kept.Bytes = st.Size
		return nil
	})
}

// RemoveKept removes what was kept under a path, and nothing else: the path is the job's, and root
// does not follow where its user could lead it.
func RemoveKept(path string) error {
	return withKept(path, func(dir int, _ unix.Stat_t) error {
		return unix.Unlinkat(dir, filepath.Base(path), 0)
	})
}

func withKept(path string, do func(dir int, st unix.Stat_t) error) error {
	gone := fmt.Errorf("%v: %w", name(path), fs.ErrNotExist)
	if _, suffix, found := strings.Cut(filepath.Base(path), asideInfix); !found || suffix == partialSuffix || !filepath.IsAbs(path) {
		return gone
	}
	dir, err := openPath(filepath.Dir(path), unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return gone
	}
	if err != nil {
		return fmt.Errorf("%v: %w", name(path), err)
	}
	defer dir.Close()
	var st unix.Stat_t
	err = unix.Fstatat(int(dir.Fd()), filepath.Base(path), &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT), err == nil && !isRegular(st):
		return gone
	case err == nil:
		err = do(int(dir.Fd()), st)
	}
	if err != nil {
		return fmt.Errorf("%v: %w", name(path), err)
	}
	return nil
}
