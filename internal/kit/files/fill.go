package files

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// checkTrees refuses directories that are not there, hold something, or have too
// little room.
func (p *putBack) checkTrees() error {
	for _, t := range p.list.Trees {
		there, err := os.ReadDir(string(t.Dir))
		if err == nil && len(there) > 0 {
			err = fmt.Errorf("it is not empty: it holds %v", name(there[0].Name()))
		}
		if err == nil {
			err = checkRoom(string(t.Dir), t.bytes())
		}
		if err != nil {
			return &RefusedError{Problems: []error{fmt.Errorf("the job's own %v: %w", t.Dir, err)}}
		}
	}
	return nil
}

// fill makes a directory of the job's own what it was. Nobody else uses it.
func (p *putBack) fill(ctx context.Context, t tree) error {
	root, err := os.OpenRoot(string(t.Dir))
	if err != nil {
		return err
	}
	defer root.Close()
	base := t.Data
	if t.bytes() == 0 {
		base = ""
	}
	data, err := p.openData(base)
	if err != nil {
		return err
	}
	defer data.Close()
	for _, e := range t.Entries {
		err := e.make(ctx, root, data)
		if err == nil && e.Kind != kindDir {
			err = e.finish(root)
		}
		if err := cmp.Or(err, ctx.Err(), p.step("entry")); err != nil {
			return fmt.Errorf("put back %v: %w", t.full(e.Path), err)
		}
	}
	// A directory's time changes with each entry, so the directories are last.
	for _, e := range slices.Backward(t.Entries) {
		if e.Kind == kindDir {
			if err := e.finish(root); err != nil {
				return fmt.Errorf("put back %v: %w", t.full(e.Path), err)
			}
		}
	}
	if t.Top != nil {
		t.Top.Path = "."
		if err := t.Top.finish(root); err != nil {
			return fmt.Errorf("put back %v: %w", t.Dir, err)
		}
	}
	return p.step("filled")
}

// make makes an entry.
func (e *entry) make(ctx context.Context, root *os.Root, data *os.File) error {
	path := string(e.Path)
	switch e.Kind {
	case kindDir:
		return root.Mkdir(path, 0o700)
	case kindLink:
		return root.Link(string(e.Target), path)
	case kindSymlink:
		return root.Symlink(string(e.Target), path)
	case kindFIFO, kindSocket:
		dir, err := root.Open(filepath.Dir(path))
		if err != nil {
			return err
		}
		defer dir.Close()
		kind := map[kind]uint32{kindFIFO: unix.S_IFIFO, kindSocket: unix.S_IFSOCK}[e.Kind]
		return unix.Mknodat(int(dir.Fd()), filepath.Base(path), kind|0o600, 0)
	}
	f, err := root.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(e.Meta.Size); err != nil {
		return err
	}
	return e.Content.writeTo(ctx, f, data, func() error { return nil })
}

// finish gives an entry its owner, mode and time.
func (e *entry) finish(root *os.Root) error {
	if e.Kind == kindLink {
		return nil // the file has them
	}
	path := string(e.Path)
	if err := root.Lchown(path, int(e.Meta.UID), int(e.Meta.GID)); err != nil || e.Kind == kindSymlink {
		return err
	}
	if err := cmp.Or(root.Chmod(path, fileMode(e.Meta.Mode)), e.setAttributes(root)); err != nil {
		return err
	}
	return root.Chtimes(path, mtime(e.Meta), mtime(e.Meta))
}
