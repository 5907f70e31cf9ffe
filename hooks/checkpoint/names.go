package checkpoint

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/core/inspect"
	"cucriu/internal/kit/inventory"
)

// deleted is what the kernel appends to a name that was removed.
const deleted = " (deleted)"

// relinkedFiles are names that a dump gives to the files that the tree uses by removed ones: the names that
// the kernel tells of them, "NAME (deleted)", by which criu looks for them. criu's own way, --link-remap,
// makes names of small numbers, of which two dumped jobs cannot have the same in one directory, and
// removes them early in a restore, so that an image whose restore fails after that is lost.
//
// They are given before criu is started, so that a dump that cannot give one is refused before anything
// is touched, and again once the tree is stopped: until then it may remove more.
type relinkedFiles struct {
	log    *slog.Logger
	refuse func(preflight.Findings) error
	given  []func(keep bool) error
}

// settle must be called once the dump has ended. It takes the names away again unless there is an image.
func (g *relinkedFiles) settle(keep bool) {
	for _, name := range g.given {
		if err := name(keep); err != nil {
			g.log.Warn("a name that was given to a file for the dump could not be removed", "error", err)
		}
	}
}

// give gives the names that are not given yet.
func (g *relinkedFiles) give(removed []inventory.RemovedName) error {
	for _, name := range removed {
		settleOne, err := relink(name)
		if errors.Is(err, os.ErrExist) {
			continue // by another process of the tree; or a stranger's file, and criu says so
		}
		if errors.Is(err, os.ErrNotExist) {
			if err := g.refuse(inspect.Unlinkable(name)); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("process %d uses %s under this name, which was removed, and the file cannot be linked under another: %w", name.PID, name.Path, err)
		}
		g.given = append(g.given, settleOne)
		g.log.Warn("a file is in use under a removed name: the image can be restored on this host only, and only while the file exists",
			"file", name.Path+deleted, "pid", name.PID)
	}
	return nil
}

// relink links a file to the name that the kernel tells of it. No link on the way is followed:
// whoever may have put one there has fewer rights than we.
func relink(name inventory.RemovedName) (settle func(keep bool) error, err error) {
	top, err := unix.Open(filepath.Join("/proc", strconv.Itoa(name.PID), "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(top)
	folder, base := filepath.Split(name.Path + deleted)
	dir, err := unix.Openat2(top, folder, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, err
	}
	if err := unix.Linkat(unix.AT_FDCWD, name.Link, dir, base, unix.AT_SYMLINK_FOLLOW); err != nil {
		unix.Close(dir)
		return nil, err
	}
	return func(keep bool) error {
		defer unix.Close(dir)
		if keep {
			return nil
		}
		if err := unix.Unlinkat(dir, base, 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove %s: %w", name.Path+deleted, err)
		}
		return nil
	}, nil
}
