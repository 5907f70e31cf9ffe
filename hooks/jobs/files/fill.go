package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// checkTrees refuses directories that are not there, hold what is not the job's, or have too
// little room. A PutBack that was killed may have filled them in part.
func (p *putBack) checkTrees() error {
	var problems []error
	for _, t := range p.list.Trees {
		err := t.checkVacant()
		if err == nil {
			err = checkRoom(string(t.Dir), t.bytes())
		}
		if err != nil {
			problems = append(problems, err)
		}
	}
	if len(problems) > 0 {
		return &RefusedError{Problems: problems}
	}
	return nil
}

func (t tree) checkVacant() error {
	dir, err := openDirectory(string(t.Dir))
	if err != nil {
		return fmt.Errorf("the job's own %v: %w", t.Dir, err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("the job's own %v: %w", t.Dir, err)
	}
	ours := make(map[name]bool)
	for _, top := range t.top() {
		ours[top] = true
	}
	for _, base := range names {
		if !ours[name(base)] {
			return fmt.Errorf("the job's own %v is not empty: it holds %v, which is not the job's", t.Dir, name(base))
		}
	}
	return nil
}

// top lists the entries that are in the directory itself.
func (t tree) top() []name {
	var top []name
	for _, e := range t.Entries {
		if !strings.Contains(string(e.Path), "/") {
			top = append(top, e.Path)
		}
	}
	return top
}

// fill makes a directory of the job's own what it was. Nobody else uses it.
func (p *putBack) fill(ctx context.Context, t tree) error {
	root, err := os.OpenRoot(string(t.Dir))
	if err != nil {
		return err
	}
	defer root.Close()
	for _, top := range t.top() {
		if err := root.RemoveAll(string(top)); err != nil {
			return fmt.Errorf("empty the job's own %v: %w", t.Dir, err)
		}
	}
	var data *os.File
	if t.bytes() > 0 {
		if data, err = p.dir.Open(t.Data); err != nil {
			return err
		}
		defer data.Close()
	}
	for _, e := range t.Entries {
		err := ctx.Err()
		if err == nil {
			err = e.make(ctx, root, data)
		}
		if err == nil {
			err = p.step("entry")
		}
		if err != nil {
			return fmt.Errorf("put back %v: %w", name(filepath.Join(string(t.Dir), string(e.Path))), err)
		}
	}
	// A directory's time changes with each entry, so the directories are last.
	for _, e := range slices.Backward(t.Entries) {
		if e.Kind == kindDir {
			if err := e.finish(root); err != nil {
				return fmt.Errorf("put back %v: %w", name(filepath.Join(string(t.Dir), string(e.Path))), err)
			}
		}
	}
	return p.step("filled")
}

// make makes an entry.
func (e entry) make(ctx context.Context, root *os.Root, data *os.File) error {
	path := string(e.Path)
	switch e.Kind {
	case kindDir:
		return root.Mkdir(path, 0o700)
	case kindLink:
		return root.Link(string(e.Target), path)
	case kindSymlink:
		if err := root.Symlink(string(e.Target), path); err != nil {
			return err
		}
		return root.Lchown(path, int(e.Meta.UID), int(e.Meta.GID))
	case kindFIFO:
		dir, err := root.Open(filepath.Dir(path))
		if err != nil {
			return err
		}
		defer dir.Close()
		if err := unix.Mknodat(int(dir.Fd()), filepath.Base(path), unix.S_IFIFO|0o600, 0); err != nil {
			return err
		}
		return e.finish(root)
	}
	f, err := root.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(e.write(ctx, f, data), f.Close()); err != nil {
		return err
	}
	return e.finish(root)
}

func (e entry) write(ctx context.Context, f, data *os.File) error {
	if err := f.Truncate(e.Meta.Size); err != nil {
		return err
	}
	then := &saved{data: data, size: e.Meta.Size, extents: e.Content.Extents}
	at := e.Content.Start
	for _, part := range e.Content.Extents {
		then.starts = append(then.starts, at)
		at += part.Length
	}
	return then.writeTo(ctx, f, func() error { return nil })
}

// finish gives an entry its owner, mode and time.
func (e entry) finish(root *os.Root) error {
	path := string(e.Path)
	if err := root.Lchown(path, int(e.Meta.UID), int(e.Meta.GID)); err != nil {
		return err
	}
	if err := root.Chmod(path, fileMode(e.Meta.Mode)); err != nil {
		return err
	}
	return root.Chtimes(path, mtime(e.Meta), mtime(e.Meta))
}
