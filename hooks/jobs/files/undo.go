package files

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/durable"
)

// UndoFile is where the record is that says how to undo a PutBack.
type UndoFile struct {
	Path string `json:"path,omitempty"`
	// Spare is where it is instead if the disk of Path is full; "" for nowhere.
	Spare string `json:"spare,omitempty"`
}

// InSpare reports whether the record is in Spare.
func (f UndoFile) InSpare() bool {
	_, err := os.Lstat(f.Spare)
	return err == nil
}

// at returns where the record is. One in Spare is the newer one.
func (f UndoFile) at() string {
	if f.InSpare() {
		return f.Spare
	}
	return f.Path
}

func (f UndoFile) write(r undoRecord) error {
	at := f.at()
	err := durable.WriteJSON(at, r)
	if durable.IsFull(err) && f.Spare != "" && at != f.Spare {
		return durable.WriteJSON(f.Spare, r)
	}
	return err
}

// undoRecord says how to make the files again what they were before PutBack. It is on disk before
// the first of them is changed, and is removed with [Forget] once the job is restored.
type undoRecord struct {
	// Done says that PutBack came to its end. A file that was changed since is left alone.
	Done  bool       `json:"done"`
	Paths []undoPath `json:"paths"`
}

// undoPath is what was at a path before PutBack.
type undoPath struct {
	Path  name     `json:"path"`
	Inode uint64   `json:"inode"` // 0 if there was nothing
	Meta  metadata `json:"meta"`
	// Kept is the name beside it under which its newer content is kept, from the offset From on.
	Kept string `json:"kept,omitempty"`
	From int64  `json:"from,omitempty"`
	// Moved says that the file itself was given that name.
	Moved bool `json:"moved,omitempty"`
	// Blank says that it held nothing but zeros, which are not kept.
	Blank bool `json:"blank,omitempty"`
	// After is what PutBack left there, with Done, or is about to leave.
	After metadata `json:"after"`
}

// note writes the record.
func (p *putBack) note(todos []todo, done bool) error {
	if p.Undo.Path == "" {
		return nil
	}
	r := undoRecord{Done: done}
	for i := range todos {
		if done {
			todos[i].readAfter()
		}
		r.Paths = append(r.Paths, todos[i].undo...)
	}
	if len(r.Paths) == 0 {
		return nil
	}
	if _, err := os.Lstat(p.Undo.at()); err == nil && !done {
		return fmt.Errorf("%s says that something is yet to be undone", p.Undo.at())
	}
	if err := p.Undo.write(r); err != nil {
		return fmt.Errorf("record of how to undo what is done to the job's files: %w", err)
	}
	return p.step("noted")
}

// readAfter reads what PutBack has left.
func (todo *todo) readAfter() {
	for i := range todo.undo {
		if st, err := statPath(string(todo.undo[i].Path)); err == nil {
			todo.undo[i].After = metadataOf(st)
		}
	}
}

// Undo makes the files again what they were before the PutBack whose record this is, and removes
// the record. Nothing of the job may run. It returns the files that it left alone, because others
// have changed them meanwhile. If it fails or is killed, it can be called again.
func Undo(record UndoFile) (left []Change, err error) {
	return undoInSteps(record, func(string) error { return nil })
}

func undoInSteps(record UndoFile, step stepper) (left []Change, err error) {
	data, err := os.ReadFile(record.at())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var r undoRecord
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return nil, fmt.Errorf("record of how to undo what was done to the job's files: %w", err)
	}
	if r.Done {
		if left, err = r.dropChanged(record); err != nil {
			return left, err
		}
		if err := step("noted"); err != nil {
			return left, err
		}
	}
	for _, u := range slices.Backward(r.Paths) { // a file comes before its other names
		if err := cmp.Or(u.undo(step), step("undone")); err != nil {
			return left, fmt.Errorf("make %v again what it was: %w", u.Path, err)
		}
	}
	for _, u := range r.Paths {
		if u.Kept == "" || u.Moved {
			continue
		}
		if err := RemoveKept(string(u.keptName())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return left, err
		}
		if err := step("kept removed"); err != nil {
			return left, err
		}
	}
	return left, Forget(record)
}

// Forget removes a record: the job goes on with its files as they are.
func Forget(record UndoFile) error {
	err := os.Remove(record.Path)
	if err == nil {
		err = durable.Sync(filepath.Dir(record.Path))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if record.InSpare() { // last: it is the newer one
		return os.Remove(record.Spare)
	}
	return nil
}

func (u undoPath) keptName() name {
	return name(filepath.Join(filepath.Dir(string(u.Path)), u.Kept))
}

// dropChanged takes the files from the record that others have changed since PutBack came to its
// end. The others are undone from then on, whoever is killed.
func (r *undoRecord) dropChanged(record UndoFile) (left []Change, err error) {
	r.Paths = slices.DeleteFunc(r.Paths, func(u undoPath) bool {
		st, err := statPath(string(u.Path))
		if err == nil && metadataOf(st) == u.After && (u.Inode == 0 || u.Moved || st.Ino == u.Inode) {
			return false
		}
		c := Change{Path: string(u.Path), Text: fmt.Sprintf("%v was changed meanwhile, and is left as it is", u.Path)}
		if u.Kept != "" {
			c.Kept = string(u.keptName())
			c.Text += "; what is newer than the checkpoint is in " + u.keptName().String()
		}
		left = append(left, c)
		return true
	})
	r.Done = false
	return left, record.write(*r)
}

// undo makes one path again what it was.
func (u undoPath) undo(step stepper) (err error) {
	folder, base := u.Path.split()
	dir, err := openDirectory(folder)
	if err != nil {
		return nil // nobody can have changed anything in it
	}
	t := &target{path: u.Path, dir: dir, base: base}
	defer func() { err = errors.Join(err, t.Close()) }()
	if err := t.removePartial(); err != nil {
		return err
	}
	if t.now, err = openIn(dir, base); err == nil && t.now != nil {
		t.stat, err = statOf(t.now)
	}
	at := int(dir.Fd())
	switch {
	case err != nil:
		return err
	case u.Moved:
		err := unix.Renameat(at, u.Kept, at, base)
		if errors.Is(err, unix.ENOENT) { // it was not yet moved, or is back
			return nil
		}
		return cmp.Or(err, dir.Sync())
	case t.now == nil:
		return nil
	case u.Inode == 0 && metadataOf(t.stat) == u.After:
		return cmp.Or(unix.Unlinkat(at, base, 0), dir.Sync())
	case t.stat.Ino != u.Inode || !isRegular(t.stat) || t.stat.Uid != u.Meta.UID:
		return nil
	}
	return u.writeBack(t, step)
}

// writeBack writes what is newer into the file again.
func (u undoPath) writeBack(t *target, step stepper) error {
	var kept *os.File
	if u.Kept != "" {
		look, err := openIn(t.dir, u.Kept)
		if err != nil || look == nil { // it was not yet changed, or is back
			return err
		}
		defer look.Close()
		st, err := statOf(look)
		if err != nil || !isRegular(st) || st.Uid != u.Meta.UID || st.Size != u.Meta.Size-u.From {
			return errors.Join(err, fmt.Errorf("%v is not what was kept of it", u.keptName()))
		}
		if kept, err = reopen(look, unix.O_RDONLY); err != nil {
			return err
		}
		defer kept.Close()
	}
	flags := unix.O_RDONLY
	if kept != nil || u.Blank {
		flags = unix.O_RDWR
	}
	return t.withFile(flags, func(now *os.File) (err error) {
		if kept != nil || u.Blank {
			err = errors.Join(now.Truncate(u.From), now.Truncate(u.Meta.Size), step("sized"))
		}
		if err == nil && kept != nil {
			var spans []span
			if spans, err = dataOf(kept, u.Meta.Size-u.From); err == nil {
				err = copySpans(context.Background(), now, kept, spans, -u.From)
			}
		}
		if err == nil {
			err = setModeAndTime(now, u.Meta)
		}
		return errors.Join(err, now.Sync())
	})
}
