package engine

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/agent"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/proc"
)

// A restore finds in files what a library has moved to the host. The library reads it from there into the memory
// through which it copies to the GPUs: the process then needs no memory for all of it, which the kernel would have to
// make and clear first, and starts from one image share the page cache. It is checked at the same time, so that a
// disk is waited for once: the job's own threads do not run before both are over. A process that was killed, and an
// image that it was read from, are as before: all of it can be begun again.

// findDirect finds out whether the library in a stopped process can read files.
func (b *wayBack) findDirect(ctx context.Context, t *Target) error {
	err := t.agent.CanReadFiles(ctx)
	if t.direct = err == nil; !t.direct {
		b.Env.Log.Debug("the library in a process does not read the files itself", "pid", t.PID, "reason", err)
	}
	return proc.KeepStopped(ctx, t.Process) // its filters were read
}

// moveInFiles has the library in a process bring back what it has moved, from the files. It fails with [errNotGiven] if
// the library cannot: then the memory is to be filled in.
func (b *wayBack) moveInFiles(ctx context.Context, t *Target) error {
	input, err := session.OpenPages(&b.Record, t.Member)
	if err != nil {
		return err
	}
	defer input.Close()
	pieces, files, _ := input.Pieces(t.moved)
	err = b.within(ctx, func(ctx context.Context) error { return t.handPieces(ctx, pieces, files) })
	if agent.Answered(err) {
		err = fmt.Errorf("%w: %w", errNotGiven, err)
	}
	if err == nil {
		err = t.agent.SetPieces(len(pieces))
	}
	if err == nil {
		err = b.within(ctx, func(ctx context.Context) error { return b.Failpoint(ctx, string(b.Kind)+".back.files") })
	}
	if err != nil {
		return err
	}
	t.agent.Patience = b.Env.Config.Restore.Timeout // it takes as long as the files take, and a read as that of a fill
	err = b.SpanOf(t.PID, "move in from files", func() error { return t.obey(ctx, b.Session, agent.In) })
	if errors.Is(err, agent.ErrUnread) {
		return fmt.Errorf("%w: %w", errNotGiven, err)
	}
	return err
}

// awaitCheck waits until it is known whether the files have what was written.
func (t *Target) awaitCheck() (err error) {
	if t.check != nil {
		err, t.check = <-t.check, nil
	}
	return err
}

// handPieces gives the library in a process a list of pieces, and their files, which nobody can write to through what
// it is given.
func (t *Target) handPieces(ctx context.Context, pieces []pages.Piece, files []*os.File) error {
	list, err := listOf(pieces)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotGiven, err)
	}
	given := []*os.File{list}
	defer func() {
		for _, file := range given {
			file.Close()
		}
	}()
	for _, file := range files {
		again, err := readOnly(file)
		if err != nil {
			return fmt.Errorf("%w: %s: %w", errNotGiven, file.Name(), err)
		}
		given = append(given, again)
	}
	return t.hand(ctx, given...)
}

// readOnly opens a file once more, in a mount of its own. A descriptor alone does not keep root in a container from
// opening what it leads to for writing.
func readOnly(file *os.File) (again *os.File, err error) {
	err = proc.Use(file, func(fd int) error {
		mount, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
		if err != nil {
			return fmt.Errorf("open_tree: %w", err)
		}
		defer unix.Close(mount)
		if err := unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("mount_setattr: %w", err)
		}
		again, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", mount))
		return err
	})
	return again, err
}

// readable reports whether a library can read memory in a range from the files: none is compressed, and they are few.
func readable(input *pages.Reader, at proc.Range) bool {
	pieces, files, ok := input.Pieces(at)
	return ok && len(pieces) > 0 && len(files) < agent.MostFiles
}

// listOf writes pieces to a file in memory.
func listOf(pieces []pages.Piece) (*os.File, error) {
	data, err := pages.List(pieces)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("cucriu-pieces", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	list := os.NewFile(uintptr(fd), "cucriu-pieces")
	if _, err := list.Write(data); err != nil {
		list.Close()
		return nil, err
	}
	return list, nil
}
