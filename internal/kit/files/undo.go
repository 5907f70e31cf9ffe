package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/records"
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
	err := undoKind.Write(at, r)
	if durable.IsFull(err) && f.Spare != "" && at != f.Spare {
		return undoKind.Write(f.Spare, r)
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

// undoKind has the path of its record in an [UndoFile].
var undoKind = records.Kind[undoRecord]{
	What: "undo record of the job's files", Version: 1, Limit: 1 << 30,
	Remedy: "restore it from a backup; or, if the job's files are as they should be, remove it",
}

// undoPath is what was at a path before PutBack.
type undoPath struct {
	Path  name     `json:"path"`
	Inode uint64   `json:"inode"` // 0 if there was nothing
	Meta  metadata `json:"meta"`
	// Kept is the name beside it under which its newer content is kept, from the offset From on.
	Kept string `json:"kept,omitempty"`
	From int64  `json:"from,omitempty"`
	// After is what PutBack left there, with Done, or is about to leave.
	After metadata `json:"after"`
}

// note writes the record.
func (p *putBack) note(done bool) error {
	if p.Undo.Path == "" || len(p.todos) == 0 {
		return nil
	}
	r := undoRecord{Done: done}
	for _, d := range p.todos {
		if st, err := statPath(string(d.Path)); err == nil && done {
			d.After = metadataOf(st)
		}
		r.Paths = append(r.Paths, d.undoPath)
	}
	if _, err := os.Lstat(p.Undo.at()); err == nil && !done {
		return fmt.Errorf("%s says that an undo is pending", p.Undo.at())
	}
	if err := p.Undo.write(r); err != nil {
		return fmt.Errorf("undo record of the job's files: %w", err)
	}
	return p.step("noted")
}

// Undo makes the files again what they were before the PutBack whose record this is, and removes
// the record. Nothing of the job may run. It returns the files that it left alone, because others
// have changed them meanwhile. If it fails or is killed, it can be called again.
func Undo(record UndoFile) (left []Change, err error) {
	return undoInSteps(record, func(string) error { return nil })
}

func undoInSteps(record UndoFile, step stepper) (left []Change, err error) {
	r, err := undoKind.Read(record.at())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if r.Done { // those that others have not changed since are undone from now on, whoever is killed
		r.Done = false
		r.Paths = slices.DeleteFunc(r.Paths, func(u undoPath) bool {
			st, err := statPath(string(u.Path))
			if err == nil && metadataOf(st) == u.After && (u.Inode == 0 || st.Ino == u.Inode) {
				return false
			}
			left = append(left, u.left())
			return true
		})
		if err := record.write(r); err != nil {
			return left, err
		}
		if err := step("noted"); err != nil {
			return left, err
		}
	}
	for _, u := range slices.Backward(r.Paths) { // a file comes before its other names
		done, err := u.undo(step)
		if !done {
			left = append(left, u.left())
		}
		if err := cmp.Or(err, step("undone")); err != nil {
			return left, fmt.Errorf("undo the changes to %v: %w", u.Path, err)
		}
	}
	return left, Forget(record)
}

// Forget removes a record: the job keeps its files as they are.
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

// left says that a file is left alone.
func (u undoPath) left() Change {
	c := Change{Text: fmt.Sprintf("%v has been changed since, and is left as it is", u.Path)}
	if kept, err := FindKept(string(u.keptName())); err == nil {
		c.Kept = kept.Path
		c.Text += "; the content newer than the checkpoint is in " + u.keptName().String()
	}
	return c
}

// undo makes one path again what it was. It leaves alone what PutBack has not made so.
func (u undoPath) undo(step stepper) (done bool, err error) {
	t, err := openTarget(u.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // nobody can have changed anything in this directory
	}
	if err != nil {
		return true, err
	}
	defer t.Close()
	if err := t.removePartial(); err != nil {
		return true, err
	}
	at := int(t.dir.Fd())
	switch {
	case u.Inode == 0 && t.now == nil:
		return true, nil
	case u.Inode == 0 && metadataOf(t.stat) == u.After:
		return true, cmp.Or(unix.Unlinkat(at, t.base, 0), t.dir.Sync())
	case t.now == nil, t.stat.Ino != u.Inode, !isRegular(t.stat), t.stat.Uid != u.Meta.UID, t.stat.Size > max(u.Meta.Size, u.After.Size):
		return false, nil
	}
	return true, u.writeBack(t, step)
}

// writeBack writes what is newer into the file again, and removes where it was kept.
func (u undoPath) writeBack(t *target, step stepper) error {
	if u.Kept == "" {
		return t.withFile(unix.O_RDONLY, func(now *os.File) error {
			return errors.Join(setModeAndTime(now, u.Meta), now.Sync())
		})
	}
	kept, err := openTarget(u.keptName())
	if err != nil {
		return err
	}
	defer kept.Close()
	if kept.now == nil {
		return nil // it was not yet changed, or is back
	}
	if !isRegular(kept.stat) || kept.stat.Uid != u.Meta.UID || kept.stat.Size != u.Meta.Size-u.From {
		return fmt.Errorf("%v is not the backup that was kept", u.keptName())
	}
	err = kept.withFile(unix.O_RDONLY, func(from *os.File) error {
		return t.withFile(unix.O_RDWR, func(now *os.File) error {
			err := errors.Join(now.Truncate(u.From), now.Truncate(u.Meta.Size), step("sized"))
			if err == nil {
				err = copyData(context.Background(), now, from, 0, kept.stat.Size, u.From)
			}
			if err == nil {
				err = setModeAndTime(now, u.Meta)
			}
			return errors.Join(err, now.Sync())
		})
	})
	if err == nil {
		err = step("written back")
	}
	if err == nil {
		err = unix.Unlinkat(int(kept.dir.Fd()), kept.base, 0)
	}
	return err
}
