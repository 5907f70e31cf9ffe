package files

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// action is what is to be done about a file.
type action int

const (
	leave    action = iota // only its mode and its time
	goOn                   // it is another one, and the job goes on at its end
	cut                    // what follows its end at the checkpoint is newer
	create                 // it is missing
	rewrite                // its content is another one
	complete               // the same, and there is nothing to keep: it holds only zeros
)

// todo is what is to be done about one file.
type todo struct {
	file   file
	action action
	size   int64  // what it has now
	kept   string // the path of what was kept
	undo   []undoPath
}

// writes reports whether the file is opened to change its content.
func (todo *todo) writes() bool { return todo.action != leave && todo.action != goOn }

// room is what is to be written, by file system.
type room map[uint64]*need

type need struct {
	dir   string // one directory on it
	bytes int64
}

func (r room) add(t *target, bytes int64) error {
	st, err := statOf(t.dir)
	if err != nil {
		return err
	}
	n := r[uint64(st.Dev)]
	if n == nil {
		n = &need{dir: t.dir.Name()}
		r[uint64(st.Dev)] = n
	}
	n.bytes += max(0, bytes)
	return nil
}

func (r room) check() error {
	for _, n := range r {
		if err := checkRoom(n.dir, n.bytes); err != nil {
			return err
		}
	}
	return nil
}

// look finds out what is to be done about a file, and how much room that takes.
func (p *putBack) look(ctx context.Context, f file, needs room) (todo, error) {
	targets, err := f.targets()
	if err != nil {
		return todo{}, err
	}
	defer targets.Close()
	t := targets[0]
	todo := todo{file: f, size: t.stat.Size}
	for _, other := range targets {
		if p.OnlyMissing && other.now != nil && inodeOf(other.stat) != inodeOf(t.stat) {
			return todo, fmt.Errorf("%v is another file here than %v, and is not to be changed", other.path, t.path)
		}
	}
	if t.now == nil {
		todo.action = create
		if f.Use == useAppend && !f.MayBeShorter {
			return todo, fmt.Errorf("%v, to which the job only appends, is missing: its content is not in the checkpoint", t.path)
		}
		return todo, errors.Join(needs.add(t, f.Content.length()), p.planUndo(&todo, targets))
	}
	if f.Use == useContent {
		err = p.lookAtContent(ctx, t, &todo, needs)
	} else {
		err = lookAtEnd(t, &todo, needs)
	}
	if err == nil && p.OnlyMissing && todo.action != leave {
		err = errors.New("it is there already, is another than at the checkpoint, and is not to be changed")
	}
	if err == nil && todo.writes() {
		// Opened as it will be: it may be in use as a program, or cannot be changed.
		err = t.withFile(unix.O_RDWR, func(*os.File) error { return nil })
	}
	if err == nil {
		err = p.planUndo(&todo, targets)
	}
	if err != nil {
		return todo, fmt.Errorf("%v: %w", t.path, err)
	}
	return todo, nil
}

// planUndo notes what there is at the paths of a file, and chooses the names for what is kept.
func (p *putBack) planUndo(todo *todo, targets targets) (err error) {
	then := todo.file.Meta
	for i, t := range targets {
		u := undoPath{Path: t.path, After: then}
		if t.now != nil {
			u.Inode, u.Meta = t.stat.Ino, metadataOf(t.stat)
		}
		switch {
		case i > 0 && t.now != nil && inodeOf(t.stat) == inodeOf(targets[0].stat):
			continue
		case i > 0 && t.now != nil:
			u.Moved = true
		case todo.action == create && todo.file.Use == useAppend:
			u.After.Size = 0
		case todo.action == complete:
			u.Blank = true
		case todo.action == cut:
			u.From = then.Size
		case i == 0 && (todo.action == leave || todo.action == goOn) && (p.OnlyMissing || u.Meta == then):
			continue
		}
		if u.Moved || i == 0 && (todo.action == cut || todo.action == rewrite) {
			if u.Kept, err = p.freeName(t); err != nil {
				return err
			}
		}
		todo.undo = append(todo.undo, u)
	}
	return nil
}

// lookAtEnd looks at a file to which the job only appends.
func lookAtEnd(t *target, todo *todo, needs room) error {
	f := todo.file
	same := f.End == nil
	if !same && t.stat.Size >= f.Meta.Size {
		err := t.withFile(unix.O_RDONLY, func(now *os.File) (err error) {
			same, err = f.End.isAt(now, f.Meta.Size)
			return err
		})
		if err != nil {
			return err
		}
	}
	switch {
	case same && t.stat.Size > f.Meta.Size:
		todo.action = cut
		return needs.add(t, t.stat.Size-f.Meta.Size)
	case same:
		return nil
	case f.MayBeShorter:
		todo.action = goOn
		return nil
	case t.stat.Size < f.Meta.Size:
		return fmt.Errorf("the job only appends to it; it had %d bytes at the checkpoint, and has %d now: the rest is not in the checkpoint", f.Meta.Size, t.stat.Size)
	}
	return errors.New("the job only appends to it; it has other content now than at the checkpoint, which does not hold it")
}

func (p *putBack) lookAtContent(ctx context.Context, t *target, todo *todo, needs room) error {
	like, err := p.compare(ctx, t, todo.file)
	if err != nil {
		return err
	}
	switch like {
	case equal:
		todo.action = leave
		return nil
	case blank: // there is nothing to keep
		todo.action = complete
	default:
		todo.action = rewrite
	}
	occupied := t.stat.Blocks * 512
	if todo.action == rewrite {
		if err := needs.add(t, min(occupied, t.stat.Size)); err != nil {
			return err
		}
	}
	return needs.add(t, todo.file.Content.length()-occupied)
}

func (p *putBack) compare(ctx context.Context, t *target, f file) (likeness, error) {
	then, err := openSaved(p.dir, f.Content, f.Meta.Size)
	if err != nil {
		return different, err
	}
	defer then.Close()
	result := different
	err = t.withFile(unix.O_RDONLY, func(now *os.File) error {
		result, err = compare(ctx, now, t.stat.Size, then)
		return err
	})
	return result, err
}

// withFile calls do with the file, opened for reading or writing.
func (t *target) withFile(flags int, do func(*os.File) error) error {
	f, err := reopen(t.now, flags)
	if err != nil {
		return err
	}
	defer f.Close()
	return do(f)
}
