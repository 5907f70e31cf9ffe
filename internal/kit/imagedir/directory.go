package imagedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/fault"
)

// CheckVacant refuses a directory that cannot become an image directory: it must not exist yet, or be
// empty. CheckVacant touches nothing.
func CheckVacant(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	if err := checkParent(filepath.Dir(dir)); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	if info.Mode()&os.ModeSymlink != 0 { // which a rename does not replace
		target, err := filepath.EvalSymlinks(dir)
		if err != nil {
			if target, err = os.Readlink(dir); err == nil && !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(dir), target)
			}
		}
		return fault.New(fmt.Sprintf("image directory %s is a symbolic link to %s", dir, target), "name that instead")
	}
	if !info.IsDir() {
		return fault.New(fmt.Sprintf("image directory %s is not a directory", dir), "name a new one")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	if len(entries) > 0 {
		remedy := "name a new one"
		if IsAmong(entries) {
			remedy += ", or remove this image"
		}
		return fault.New(fmt.Sprintf("image directory %s is not empty, and a dump never overwrites another", dir), remedy)
	}
	// An empty directory is replaced by a rename, which fails for a mount point.
	var itself, parent unix.Stat_t
	if err := errors.Join(unix.Stat(dir, &itself), unix.Stat(filepath.Dir(dir), &parent)); err != nil {
		return fmt.Errorf("image directory %s: %w", dir, err)
	}
	if itself.Dev != parent.Dev {
		return fault.New(fmt.Sprintf("image directory %s is a mount point", dir), "name a new directory inside it")
	}
	return nil
}

// IsAmong reports whether the entries of a directory are those of an image, complete or not.
func IsAmong(entries []os.DirEntry) bool {
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == "inventory.img" || e.Name() == ManifestName })
}

// checkParent refuses the directory above an image directory if that cannot be made in it. One that is
// missing is made by [MakeParent].
func checkParent(parent string) error {
	at := parent
	info, err := os.Stat(at)
	for errors.Is(err, os.ErrNotExist) && at != "/" {
		at = filepath.Dir(at)
		info, err = os.Stat(at)
	}
	if err == nil && info.IsDir() {
		err = unix.Access(at, unix.W_OK)
	}
	switch {
	case err != nil:
		return fault.New(fmt.Sprintf("parent directory %s: %v", at, err), "name an image directory in a writable one")
	case !info.IsDir():
		return fault.New(fmt.Sprintf("parent directory %s is not a directory", at), "name another image directory")
	case at != parent && durable.CheckPath("parent directory", parent, 0) != nil:
		return fault.New(fmt.Sprintf("parent directory %s does not exist, and cucriu does not create it because users other than root could replace it", parent), "create it first (mkdir -p "+parent+")")
	}
	return nil
}

// MakeParent makes the directory above an image directory, and those above it, if they are missing. It
// returns those that it has made.
func MakeParent(dir string) (made []string, err error) {
	return durable.MakeDirs("parent directory", filepath.Dir(dir))
}
