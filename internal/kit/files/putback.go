package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/units"
)

// Change is something that PutBack did, or that the user should know.
type Change struct {
	Kept string // where what is newer is kept; "" if nothing is
	Text string // a sentence about it
}

func (c Change) String() string { return c.Text }

// RefusedError says why the files of a job cannot be put back. Nothing was changed.
type RefusedError struct {
	Problems []error // at least one
	Remedy   string  // what to do about them; "" if they say it
}

func (e *RefusedError) Error() string {
	return "the job's files cannot be put back, and nothing was changed: " + strings.ReplaceAll(errors.Join(e.Problems...).Error(), "\n", "; ") + e.Remedy
}

func (e *RefusedError) Unwrap() []error { return e.Problems }

// stepper is called after each step, with its name. The tests interrupt there.
type stepper func(step string) error

// putBack is one run of PutBack.
type putBack struct {
	list list
	dir  *os.Root // the checkpoint's
	PutBackOptions
	step    stepper
	todos   []*todo
	needs   map[uint64]need // by file system
	changes []Change
}

// Check fails with a [*DamagedError] or a [*RefusedError] if PutBack would fail for a reason
// that can be known. It changes nothing. It does not look at the directories that the new
// sandbox of the job brings along, Shm and PrivateTmp.
func Check(ctx context.Context, dir string) error {
	return withList(ctx, dir, PutBackOptions{}, func(string) error { return nil }, func(p *putBack) error { return p.plan(ctx) })
}

// PutBack makes the files what they were at the checkpoint in dir. It has to be called
// before criu restores, in a sandbox where Shm and PrivateTmp are empty. What is newer is kept
// beside each file. It first checks everything: a [*DamagedError] or a [*RefusedError] says
// that nothing was changed.
//
// After another error, or if it was killed, [Undo] makes the files again what they were.
func PutBack(ctx context.Context, dir string, o PutBackOptions) ([]Change, error) {
	return putBackInSteps(ctx, dir, o, func(string) error { return nil })
}

// PutBackOnTrial makes the files what they were at the checkpoint in dir for a trial restore, in a
// sandbox where they are not the job's own. There are none to put back if dir is not a checkpoint
// of a long job.
func PutBackOnTrial(ctx context.Context, dir string) error {
	l, err := readList(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, t := range l.Trees {
		if err := unix.Mount("tmpfs", string(t.Dir), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
			return fmt.Errorf("the job's own %v: %w", t.Dir, err)
		}
	}
	for _, f := range l.Files {
		for _, path := range f.Paths {
			if f.Use == useRead || f.Use == useMapped {
				continue
			}
			// The overlay copies a file that is opened for writing. From then on the job does not change it.
			fd, err := unix.Open(string(path), unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err == nil {
				unix.Close(fd)
			}
		}
	}
	_, err = PutBack(ctx, dir, PutBackOptions{})
	return err
}

func putBackInSteps(ctx context.Context, dir string, o PutBackOptions, step stepper) (changes []Change, err error) {
	err = withList(ctx, dir, o, step, func(p *putBack) error {
		err := p.run(ctx)
		changes = p.changes
		return err
	})
	return changes, err
}

// CutBack cuts files to these sizes, by their paths. What follows is kept beside each file, as
// PutBack does.
func CutBack(ctx context.Context, sizes map[string]int64, o PutBackOptions) ([]Change, error) {
	p := newPutBack(list{}, nil, o, func(string) error { return nil })
	for path, size := range sizes {
		t, err := openTarget(name(path))
		if err != nil {
			return nil, &RefusedError{Problems: []error{err}}
		}
		t.Close()
		f := &file{Paths: []name{t.path}, Use: useAppend, Dev: uint64(t.stat.Dev), Inode: t.stat.Ino, Links: uint64(t.stat.Nlink), Meta: metadataOf(t.stat)}
		f.Meta.Size = size
		p.list.Files = append(p.list.Files, f)
	}
	err := p.run(ctx)
	return p.changes, err
}

func newPutBack(l list, dir *os.Root, o PutBackOptions, step stepper) *putBack {
	if o.Time.IsZero() {
		o.Time = time.Now()
	}
	return &putBack{list: l, dir: dir, PutBackOptions: o, step: step, needs: make(map[uint64]need)}
}

// withList reads the list of a checkpoint, and checks the content against it, for do.
func withList(ctx context.Context, dir string, o PutBackOptions, step stepper, do func(*putBack) error) error {
	l, err := readList(dir)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	l.Files = slices.DeleteFunc(l.Files, func(f *file) bool { return slices.Contains(f.Paths, name(o.Except)) })
	var contents []*content
	for _, f := range l.Files {
		contents = append(contents, &f.Content)
	}
	for _, t := range l.Trees {
		for _, e := range t.Entries {
			contents = append(contents, &e.Content)
		}
	}
	if err := verifyAll(ctx, root, contents); err != nil {
		return err
	}
	return do(newPutBack(l, root, o, step))
}

// run makes a list of what is to be done, notes how to undo it, and does it.
func (p *putBack) run(ctx context.Context) error {
	if err := p.plan(ctx); err != nil {
		return err
	}
	if err := p.checkTrees(); err != nil {
		return err
	}
	if err := p.note(false); err != nil {
		return err
	}
	// What is newer is on disk everywhere before anything is changed anywhere.
	for _, do := range []func(context.Context, *todo) error{p.keep, p.change} {
		for _, d := range p.todos {
			if err := do(ctx, d); err != nil {
				return err
			}
		}
	}
	for _, t := range p.list.Trees {
		if err := p.fill(ctx, t); err != nil {
			return err
		}
	}
	return p.note(true)
}

// keep copies what is newer than the checkpoint to a name beside the file.
func (p *putBack) keep(ctx context.Context, d *todo) error {
	if d.Kept == "" {
		return nil
	}
	t, err := d.open()
	if err != nil {
		return err
	}
	defer t.Close()
	meta := d.Meta
	meta.Size -= d.From
	meta.Mode &= 0o777
	err = t.withFile(unix.O_RDONLY, func(now *os.File) error {
		return t.writeBeside(d.Kept, meta, p.step, func(to *os.File) error { return copyData(ctx, to, now, d.From, d.Meta.Size, 0) })
	})
	if err != nil {
		return fmt.Errorf("could not back up the newer content of %v: %w", d.Path, err)
	}
	return p.step("kept")
}

// open opens a file that is to be changed, if nobody else has changed it since it was looked at.
func (d *todo) open() (*target, error) {
	t, err := openTarget(d.Path)
	switch {
	case err != nil:
		return nil, err
	case d.Inode == 0:
		return t, nil // nothing may be there, which its creation will find
	case t.now == nil || t.stat.Ino != d.Inode:
		err = fmt.Errorf("%v has just been removed or replaced", d.Path)
	case d.writes() && metadataOf(t.stat) != d.Meta:
		err = fmt.Errorf("%v was changed just now: %w", d.Path, errInUse)
	default:
		return t, nil
	}
	t.Close()
	return nil, err
}

var errInUse = errors.New("another program writes to it")

// change makes a file what it was. What is newer was kept.
func (p *putBack) change(ctx context.Context, d *todo) error {
	t, err := d.open()
	if errors.Is(err, errInUse) && d.Kept != "" {
		return errors.Join(err, RemoveKept(string(d.keptName()))) // an undo would write over what is there now
	}
	if err != nil {
		return err
	}
	defer t.Close()
	switch d.action {
	case create:
		err = p.create(ctx, t, d)
	case link:
		err = p.link(t, d)
	case adjust, resume:
		err = t.withFile(unix.O_RDONLY, func(now *os.File) error { return p.changeOpen(ctx, now, d) })
	case cut, rewrite:
		err = t.withFile(unix.O_RDWR, func(now *os.File) error { return p.changeOpen(ctx, now, d) })
	}
	if err != nil && d.Kept != "" {
		err = fmt.Errorf("%w; the newer content is in %v", err, d.keptName())
	}
	if err != nil {
		return fmt.Errorf("put back %v: %w", d.Path, err)
	}
	return p.step("changed")
}

func (p *putBack) changeOpen(ctx context.Context, now *os.File, d *todo) (err error) {
	switch d.action {
	case cut:
		p.say(d, "%v had grown by %s since the checkpoint: the newer content is in %v", d.Path, units.Size(d.Meta.Size-d.From), d.keptName())
		err = now.Truncate(d.From)
	case rewrite:
		p.say(d, "%v was restored to its content at the checkpoint: the newer version is in %v", d.Path, d.keptName())
		err = p.write(ctx, now, d.file)
	case resume:
		p.say(d, "%v, to which the job only appends, is not the file of the checkpoint (%s then, %s now): the job continues at its end", d.Path, units.Size(d.file.Meta.Size), units.Size(d.Meta.Size))
	}
	if err == nil {
		err = setModeAndTime(now, d.After)
	}
	if err == nil && d.writes() {
		err = now.Sync()
	}
	return err
}

// write writes the content of the checkpoint into a file. The file stays the same inode, which other
// programs may have open.
func (p *putBack) write(ctx context.Context, now *os.File, f *file) error {
	then, err := p.openData(f.Content.Data)
	if err != nil {
		return err
	}
	defer then.Close()
	if err := errors.Join(now.Truncate(0), p.step("emptied")); err != nil {
		return err
	}
	if err := errors.Join(now.Truncate(f.Meta.Size), p.step("sized")); err != nil {
		return err
	}
	return f.Content.writeTo(ctx, now, then, func() error { return p.step("part written") })
}

// create makes a file that is missing.
func (p *putBack) create(ctx context.Context, t *target, d *todo) error {
	then, err := p.openData(d.file.Content.Data)
	if err != nil {
		return err
	}
	defer then.Close()
	err = t.writeBeside(t.base, d.After, p.step, func(to *os.File) error {
		if err := p.tell(d.Path, to, d.After); err != nil {
			return err
		}
		return d.file.Content.writeTo(ctx, to, then, func() error { return p.step("part written") })
	})
	if err != nil {
		return err
	}
	if d.file.Use == useAppend {
		p.say(d, "%v was missing: it was recreated empty, because a file to which the job only appends is not in the checkpoint", d.Path)
	} else {
		p.say(d, "%v was missing: it was recreated as it was at the checkpoint", d.Path)
	}
	return nil
}

// link makes a path another name of a file, as it was at the checkpoint.
func (p *putBack) link(t *target, d *todo) error {
	of, err := openTarget(d.of)
	if err != nil {
		return err
	}
	defer of.Close()
	if of.now == nil {
		return fmt.Errorf("%v has just been removed", d.of)
	}
	if err := p.tell(d.Path, of.now, d.After); err != nil {
		return err
	}
	if err := unix.Linkat(int(of.dir.Fd()), of.base, int(t.dir.Fd()), t.base, 0); err != nil {
		return err
	}
	p.say(d, "%v was missing: it was recreated as a link to %v", d.Path, d.of)
	return t.dir.Sync()
}

// say adds a sentence for the user.
func (p *putBack) say(d *todo, format string, args ...any) {
	if p.Copies {
		return // what was changed, nobody has seen
	}
	c := Change{Text: fmt.Sprintf(format, args...)}
	if d.Kept != "" {
		c.Kept = string(d.keptName())
	}
	p.changes = append(p.changes, c)
}
