package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// action is what is to be done at a path.
type action int

const (
	adjust  action = iota // its mode and its time only
	resume                // it is another file, and the job resumes at its end
	cut                   // what follows its end at the checkpoint is newer
	rewrite               // its content is another one
	create                // it is missing
	link                  // it is missing, and was another name of a file
)

// todo is what is to be done at one path, and how that is undone.
type todo struct {
	undoPath
	file   *file
	action action
	of     name // the file of which it is another name
}

// writes reports whether the content of the file that is there is changed.
func (d *todo) writes() bool { return d.action == cut || d.action == rewrite }

const remedyPutBack = ": put these files back as they were at the checkpoint (--not-saved leaves alone only what the job writes)"

// plan lists what is to be done, and refuses what cannot be done.
func (p *putBack) plan(ctx context.Context) error {
	var problems []error
	for _, f := range p.list.Files {
		if err := ctx.Err(); err != nil {
			return err
		}
		find := p.look
		if f.Use == useRead || f.Use == useMapped {
			find = checkRead
		}
		if err := find(ctx, f); err != nil {
			problems = append(problems, err)
		}
	}
	remedy := ""
	if len(problems) > 0 && !p.OnlyMissing {
		remedy = remedyPutBack
	}
	for _, n := range p.needs {
		if err := checkRoom(n.dir, n.bytes); err != nil {
			problems = append(problems, err)
		}
	}
	if len(problems) > 0 {
		return &RefusedError{Problems: problems, Remedy: remedy}
	}
	return nil
}

// need is what is to be written to a file system.
type need struct {
	dir   string // one directory on it
	bytes int64
}

func (p *putBack) need(t *target, bytes int64) error {
	var st unix.Stat_t
	err := unix.Fstat(int(t.dir.Fd()), &st)
	p.needs[uint64(st.Dev)] = need{t.dir.Name(), p.needs[uint64(st.Dev)].bytes + max(0, bytes)}
	return err
}

// look finds out what is to be done about a file.
func (p *putBack) look(ctx context.Context, f *file) error {
	var now *target // what there is of it
	var missing []*target
	for _, path := range f.Paths {
		t, err := openTarget(path)
		if err != nil {
			return err
		}
		defer t.Close()
		switch {
		case t.now == nil:
			missing = append(missing, t)
			continue
		case now != nil && inodeOf(t.stat) != inodeOf(now.stat):
			return fmt.Errorf("%v and %v are different files now, but were the same one at the checkpoint: move one of them away", path, now.path)
		}
		if err := f.checkSame(t.stat); err != nil {
			return fmt.Errorf("%v: %w", path, err)
		}
		if now == nil {
			now = t
		}
	}
	after := f.Meta // of the file, whatever its names
	if now == nil {
		if now, missing = missing[0], missing[1:]; f.Use == useAppend {
			if !f.MayBeShorter {
				return fmt.Errorf("%v, to which the job only appends, is missing: its content is not in the checkpoint", now.path)
			}
			after.Size = 0
		}
		p.add(f, now, create).After = after
		if err := p.need(now, f.Content.length()); err != nil {
			return err
		}
	} else if d, err := p.compare(ctx, f, now); err != nil {
		return fmt.Errorf("%v: %w", now.path, err)
	} else if d != nil {
		after = d.After
	}
	for _, t := range missing {
		d := p.add(f, t, link)
		d.of, d.After = now.path, after
	}
	return nil
}

// add adds to the list of what is to be done.
func (p *putBack) add(f *file, t *target, a action) *todo {
	d := &todo{undoPath: undoPath{Path: t.path, After: f.Meta}, file: f, action: a}
	if t.now != nil {
		d.Inode, d.Meta = t.stat.Ino, metadataOf(t.stat)
	}
	p.todos = append(p.todos, d)
	return d
}

// compare finds out what is to be done about a file that is there; nil if nothing is.
func (p *putBack) compare(ctx context.Context, f *file, t *target) (*todo, error) {
	var a action
	err := t.withFile(unix.O_RDONLY, func(now *os.File) (err error) {
		if f.Use == useContent {
			a, err = p.compareContent(ctx, f, now, t.stat.Size)
		} else {
			a, err = f.compareEnd(now, t.stat.Size)
		}
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case a == adjust && (p.OnlyMissing || metadataOf(t.stat) == f.Meta):
		return nil, nil
	case p.OnlyMissing:
		return nil, errors.New("it already exists, differs from the checkpoint, and must not be changed")
	}
	d := p.add(f, t, a)
	switch a {
	case resume:
		d.After.Size, d.After.MTime = d.Meta.Size, d.Meta.MTime
		return d, nil
	case adjust:
		return d, nil
	case cut:
		d.From = f.Meta.Size
	}
	occupied := min(t.stat.Blocks*512, t.stat.Size)
	err = errors.Join(p.need(t, min(occupied, t.stat.Size-d.From)), p.need(t, f.Content.length()-occupied))
	if err == nil && !p.Copies {
		d.Kept, err = p.freeName(t)
	}
	if err == nil { // opened as it will be: it may be in use as a program, or cannot be changed
		err = t.withFile(unix.O_RDWR, func(*os.File) error { return nil })
	}
	return d, err
}

// compareEnd looks at a file to which the job only appends.
func (f *file) compareEnd(now *os.File, size int64) (action, error) {
	same := f.End == nil
	if !same && size >= f.Meta.Size {
		end, err := endingOf(now, f.Meta.Size)
		if err != nil {
			return adjust, err
		}
		same = *end == *f.End
	}
	switch {
	case same && size > f.Meta.Size:
		return cut, nil
	case same && size == f.Meta.Size:
		return adjust, nil
	case f.MayBeShorter:
		return resume, nil
	case size < f.Meta.Size:
		return adjust, fmt.Errorf("the job only appends to it; it had %d bytes at the checkpoint, but has %d now: the rest is not in the checkpoint", f.Meta.Size, size)
	}
	return adjust, errors.New("the job only appends to it; its content differs from that at the checkpoint, which does not include it")
}

func (p *putBack) compareContent(ctx context.Context, f *file, now *os.File, size int64) (action, error) {
	then, err := p.openData(f.Content.Data)
	if err != nil {
		return rewrite, err
	}
	defer then.Close()
	if size != f.Meta.Size {
		return rewrite, nil
	}
	if same, err := f.Content.isIn(ctx, now, size, then); !same || err != nil {
		return rewrite, err
	}
	return adjust, nil
}

// openData opens the data of a file of the checkpoint. A file that is all a hole has none.
func (p *putBack) openData(base string) (*os.File, error) {
	if base == "" {
		return os.Open(os.DevNull)
	}
	return p.dir.Open(base)
}

// freeName returns a name beside the file for what is kept of it.
func (p *putBack) freeName(t *target) (string, error) {
	for i := 1; ; i++ {
		base := asidePrefix(t.base) + p.Time.UTC().Format("20060102-150405")
		if i > 1 {
			base += "-" + strconv.Itoa(i)
		}
		_, err := statPath(filepath.Join(t.dir.Name(), base))
		if errors.Is(err, unix.ENOENT) {
			return base, nil
		} else if err != nil {
			return "", err
		}
	}
}

// checkSame refuses a file that somebody with fewer rights than root may have put in the
// place of the job's: something else than a file, another user's file, or another name of a
// file that is elsewhere too.
func (f *file) checkSame(now unix.Stat_t) error {
	switch {
	case !isRegular(now):
		return fmt.Errorf("it is %s now, but was a regular file at the checkpoint", what(now))
	case now.Uid != f.Meta.UID:
		return fmt.Errorf("it belongs to user %d now, but belonged to user %d at the checkpoint", now.Uid, f.Meta.UID)
	case uint64(now.Nlink) > f.Links && inodeOf(now) != (inode{f.Dev, f.Inode}):
		return fmt.Errorf("it is not the file of the checkpoint, and has %d names, not %d", now.Nlink, f.Links)
	}
	return nil
}

// checkRead refuses a file that the tree only reads, if it is not what criu insists on. A
// symbolic link on the way is no harm: criu follows it.
func checkRead(_ context.Context, f *file) error {
	subject := "which the job has open for reading,"
	if f.Use == useMapped {
		subject = "a program or a library of the job,"
	}
	for _, path := range f.Paths {
		var now unix.Stat_t
		err := unix.Stat(string(path), &now)
		switch {
		case errors.Is(err, unix.ENOENT):
			return fmt.Errorf("%v, %s is missing", path, subject)
		case err != nil:
			return fmt.Errorf("%v, %s: %w", path, subject, err)
		case !isRegular(now):
			return fmt.Errorf("%v, %s is %s now", path, subject, what(now))
		case now.Size != f.Meta.Size:
			return fmt.Errorf("%v, %s had %d bytes at the checkpoint, but has %d now", path, subject, f.Meta.Size, now.Size)
		case now.Mode&0o7777 != f.Meta.Mode:
			return fmt.Errorf("%v, %s had mode %04o at the checkpoint, but has %04o now", path, subject, f.Meta.Mode, now.Mode&0o7777)
		}
	}
	return nil
}
