package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/durable"
	"cucriu/internal/fault"
	"cucriu/internal/proc"
)

// An image directory is complete or absent. criu writes into a partial directory beside it,
// which gets the final name once everything in it is on disk.

const partialInfix = ".partial-" // between the directory's name and the pid of the process that writes it

// NewPartial makes the directory that criu writes into until the image is complete and can get
// its name, dir. dir must not exist yet, or be empty: a dump never overwrites another.
// NewPartial removes what a killed dump under the same name left behind, except the directories
// that needed returns true for, and refuses one that is at work. The file claims the directory: see
// isClaimed.
func NewPartial(dir string, needed func(partial string) bool) (string, *os.File, error) {
	if err := CheckVacant(dir); err != nil {
		return "", nil, err
	}
	if err := removeStalePartials(dir, needed); err != nil {
		return "", nil, err
	}
	partial := dir + partialInfix + strconv.Itoa(os.Getpid())
	if err := unix.Mkdir(partial, 0o700); err != nil {
		return "", nil, fault.New(fmt.Sprintf("no directory can be made in %s: %v", filepath.Dir(dir), err), "name an image directory elsewhere")
	}
	claim, err := os.Open(partial)
	if err == nil {
		_ = unix.Flock(int(claim.Fd()), unix.LOCK_EX) // not every file system has locks
	}
	return partial, claim, err
}

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

// removeStalePartials removes the partial directories of dir whose writer has ended, except
// those that are needed.
func removeStalePartials(dir string, needed func(string) bool) error {
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	for _, entry := range entries {
		pid, isPartial := strings.CutPrefix(entry.Name(), filepath.Base(dir)+partialInfix)
		writer, err := strconv.Atoi(pid)
		if !isPartial || err != nil || !entry.IsDir() {
			continue
		}
		partial := filepath.Join(filepath.Dir(dir), entry.Name())
		claimed := isClaimed(partial)
		process, err := proc.Open(writer)
		if err == nil {
			process.Close()
			if claimed {
				return fault.New(fmt.Sprintf("another dump into %s is at work (process %d)", dir, writer), "name another image directory")
			}
			continue
		}
		if claimed || needed(partial) {
			continue // claimed: its writer lives, in another pid namespace, or its watcher
		}
		if err := os.RemoveAll(partial); err != nil {
			return fmt.Errorf("remove the leftovers of a killed dump: %w", err)
		}
	}
	return nil
}

// isClaimed reports whether a running dump has claimed a directory. It works across pid
// namespaces.
func isClaimed(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// LockRestore refuses a second restore of an image, until the file that it returns is closed or this
// process ends; nil if there is nothing to lock. It locks no directory: a dump's watcher may have it.
func LockRestore(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "inventory.img"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil // the restore says what is wrong
	}
	if errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
		f.Close()
		return nil, fault.New(fmt.Sprintf("image directory %s: another restore of this image is at work", dir), "wait until it is over")
	}
	return f, nil
}

// IsPartial reports whether a directory was made by [NewPartial].
func IsPartial(dir string) bool { return strings.Contains(filepath.Base(dir), partialInfix) }

// FinalName returns the name that a partial directory gets once it is complete. Any other
// directory has its final name.
func FinalName(dir string) string {
	if !IsPartial(dir) {
		return dir
	}
	name, _, _ := strings.Cut(filepath.Base(dir), partialInfix)
	return filepath.Join(filepath.Dir(dir), name)
}

// Publish gives a complete image its name, after every byte of it is on disk.
func Publish(partial, dir string) error {
	if err := durable.SyncTree(context.Background(), partial); err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	if err := unix.Rename(partial, dir); err != nil { // os.Rename refuses to replace an empty directory
		return fmt.Errorf("image directory %s: %w", dir, err)
	}
	return durable.Sync(filepath.Dir(dir))
}
