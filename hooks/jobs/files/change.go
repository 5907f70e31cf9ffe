package files

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// keepNewer copies what is newer than the checkpoint to a name beside the file.
func (p *putBack) keepNewer(ctx context.Context, todo *todo) error {
	if todo.action != cut && todo.action != rewrite {
		return nil
	}
	targets, err := todo.file.targets()
	if err != nil {
		return err
	}
	defer targets.Close()
	t := targets[0]
	if t.now == nil {
		return fmt.Errorf("%v has just been removed", t.path)
	}
	start := int64(0)
	if todo.action == cut {
		start = todo.file.Meta.Size
	}
	todo.size = t.stat.Size
	u := todo.undoOf(t)
	err = t.withFile(unix.O_RDONLY, func(now *os.File) error { return t.keep(ctx, now, start, t.stat.Size, u.Kept, p.step) })
	todo.kept = string(u.keptName())
	if err != nil {
		return err
	}
	return p.step("kept")
}

// undoOf returns what was planned for a path.
func (todo *todo) undoOf(t *target) undoPath {
	i := slices.IndexFunc(todo.undo, func(u undoPath) bool { return u.Path == t.path })
	if i < 0 {
		return undoPath{Path: t.path}
	}
	return todo.undo[i]
}

// change makes a file what it was. What is newer was kept.
func (p *putBack) change(ctx context.Context, todo *todo) error {
	targets, err := todo.file.targets()
	if err != nil {
		return err
	}
	defer targets.Close()
	f, t := todo.file, targets[0]
	if todo.action == create {
		err = p.create(ctx, t, f)
	} else if t.now == nil {
		err = fmt.Errorf("%v has just been removed", t.path)
	} else {
		err = t.withFile(todo.flags(), func(now *os.File) error { return p.changeOpen(ctx, now, t, todo) })
	}
	if err != nil {
		return fmt.Errorf("put back %v: %w", t.path, err)
	}
	for _, other := range targets[1:] {
		if err := p.linkTo(t, other, todo); err != nil {
			return fmt.Errorf("put back %v: %w", other.path, err)
		}
	}
	return nil
}

func (todo *todo) flags() int {
	if todo.writes() {
		return unix.O_RDWR
	}
	return unix.O_RDONLY
}

func (p *putBack) changeOpen(ctx context.Context, now *os.File, t *target, todo *todo) error {
	f := todo.file
	if todo.writes() {
		st, err := statOf(now)
		if err != nil {
			return err
		}
		if st.Size != todo.size {
			return fmt.Errorf("it had %d bytes just now, and has %d: another program writes to it", todo.size, st.Size)
		}
	}
	var err error
	switch todo.action {
	case cut:
		if err = now.Truncate(f.Meta.Size); err == nil {
			p.say(f, todo.kept, "%v had grown by %s since the checkpoint: what is newer is in %v", t.path, size(t.stat.Size-f.Meta.Size), name(todo.kept))
		}
	case rewrite:
		if err = p.write(ctx, now, f); err == nil {
			p.say(f, todo.kept, "%v is what it was at the checkpoint again: the newer one is in %v", t.path, name(todo.kept))
		}
	case complete:
		if err = p.write(ctx, now, f); err == nil {
			p.say(f, "", "%v is what it was at the checkpoint again", t.path)
		}
	case goOn:
		p.say(f, "", "%v, to which the job only appends, is not the one of the checkpoint (%s then, %s now): the job goes on at its end", t.path, size(f.Meta.Size), size(t.stat.Size))
		f.Meta.MTime = t.stat.Mtim.Nano()
	}
	if err == nil && !p.OnlyMissing {
		err = setModeAndTime(now, f.Meta)
	}
	if err == nil && todo.writes() {
		err = now.Sync()
	}
	if err != nil {
		if todo.kept != "" {
			err = fmt.Errorf("%w; what is newer is in %v", err, name(todo.kept))
		}
		return err
	}
	return p.step("changed")
}

// write writes the content of the checkpoint into a file.
func (p *putBack) write(ctx context.Context, now *os.File, f file) error {
	then, err := openSaved(p.dir, f.Content, f.Meta.Size)
	if err != nil {
		return err
	}
	defer then.Close()
	if err := now.Truncate(0); err != nil {
		return err
	}
	if err := p.step("emptied"); err != nil {
		return err
	}
	if err := now.Truncate(f.Meta.Size); err != nil {
		return err
	}
	if err := p.step("sized"); err != nil {
		return err
	}
	return then.writeTo(ctx, now, func() error { return p.step("part written") })
}

// writeTo writes the data to a file of the same size that is all a hole.
func (s *saved) writeTo(ctx context.Context, to io.WriterAt, written func() error) error {
	for i, e := range s.extents {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := io.NewSectionReader(s.data, s.starts[i], e.Length)
		if n, err := io.Copy(io.NewOffsetWriter(to, e.Offset), part); err != nil || n != e.Length {
			return fmt.Errorf("%d of %d bytes were written: %w", n, e.Length, readErrorOr(err))
		}
		if err := written(); err != nil {
			return err
		}
	}
	return nil
}

func readErrorOr(err error) error {
	if err == nil {
		return readError(io.ErrUnexpectedEOF)
	}
	return err
}

// create makes a file that is missing.
func (p *putBack) create(ctx context.Context, t *target, f file) error {
	meta := f.Meta
	if f.Use == useAppend {
		meta.Size = 0
	}
	then, err := openSaved(p.dir, f.Content, f.Meta.Size)
	if err != nil {
		return err
	}
	defer then.Close()
	err = t.writeBeside(meta, p.step, func(to *os.File) error {
		if err := p.tell(t, to, meta); err != nil {
			return err
		}
		return then.writeTo(ctx, to, func() error { return p.step("part written") })
	})
	if err == nil {
		err = t.rename(asidePrefix(t.base)+partialSuffix, t.base)
	}
	if err == nil {
		err = t.dir.Sync()
	}
	if err != nil {
		return err
	}
	if f.Use == useAppend {
		p.say(f, "", "%v was missing: it is there again, but empty, since a file to which the job only appends is not in the checkpoint", t.path)
	} else {
		p.say(f, "", "%v was missing: it is there again, as it was at the checkpoint", t.path)
	}
	return p.step("created")
}

// linkTo makes a path another name of the file, as it was at the checkpoint. What is there
// instead is kept under another name.
func (p *putBack) linkTo(t, other *target, todo *todo) error {
	now, err := openIn(t.dir, t.base)
	if err != nil {
		return err
	}
	if now == nil {
		return fmt.Errorf("%v has just been removed", t.path)
	}
	defer now.Close()
	st, err := statOf(now)
	if err != nil {
		return err
	}
	kept := ""
	if other.now != nil {
		if inodeOf(st) == inodeOf(other.stat) {
			return nil
		}
		u := todo.undoOf(other)
		if err := other.rename(other.base, u.Kept); err != nil {
			return err
		}
		kept = string(u.keptName())
		if err := p.step("moved aside"); err != nil {
			return err
		}
	}
	if err := p.tell(other, now, todo.file.Meta); err != nil {
		return err
	}
	if err := unix.Linkat(int(t.dir.Fd()), t.base, int(other.dir.Fd()), other.base, 0); err != nil {
		return err
	}
	if kept == "" {
		p.say(todo.file, "", "%v was missing: it is another name of %v again", other.path, t.path)
	} else {
		p.say(todo.file, kept, "%v is another name of %v again: what was there is in %v", other.path, t.path, name(kept))
	}
	return other.dir.Sync()
}
