package files

import (
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
	t, err := openKept(path)
	if err != nil {
		return Kept{}, err
	}
	defer t.Close()
	return Kept{Path: path, Bytes: t.stat.Size}, nil
}

// RemoveKept removes what was kept under a path, and nothing else: the path is the job's, and root
// does not follow where its user could lead it.
func RemoveKept(path string) error {
	t, err := openKept(path)
	if err != nil {
		return err
	}
	defer t.Close()
	if err := unix.Unlinkat(int(t.dir.Fd()), t.base, 0); err != nil {
		return fmt.Errorf("%v: %w", t.path, err)
	}
	return nil
}

func openKept(path string) (*target, error) {
	gone := fmt.Errorf("%v: %w", name(path), fs.ErrNotExist)
	if _, suffix, found := strings.Cut(filepath.Base(path), asideInfix); !found || suffix == partialSuffix || !filepath.IsAbs(path) {
		return nil, gone
	}
	t, err := openTarget(name(path))
	if err == nil && (t.now == nil || !isRegular(t.stat)) {
		t.Close()
		return nil, gone
	}
	return t, err
}
