package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Change is something that PutBack did, or that the user should know.
type Change struct {
	Path string
	Kept string // where what is newer is kept; "" if nothing is
	Text string // a sentence about it
}

func (c Change) String() string { return c.Text }

// RefusedError says why the files of a job cannot be put back. Nothing was changed.
type RefusedError struct {
	Problems []error // at least one
}

func (e *RefusedError) Error() string {
	var problems []string
	for _, problem := range e.Problems {
		problems = append(problems, problem.Error())
	}
	return "the job's files cannot be put back, and nothing was changed: " + strings.Join(problems, "; ")
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
	changes []Change
	taken   map[string]bool // the names that are chosen for what is kept
}

// Check fails with a [*DamagedError] or a [*RefusedError] if PutBack would fail for a reason
// that can be known. It changes nothing. It does not look at the directories that the new
// place of the job brings along, Shm and PrivateTmp.
func Check(ctx context.Context, dir string) error {
	p, err := open(ctx, dir, PutBackOptions{}, nil)
	if err != nil {
		return err
	}
	defer p.dir.Close()
	_, err = p.plan(ctx)
	return err
}

// PutBack makes the files what they were at the checkpoint in dir. It has to be called
// before criu restores, in a place where Shm and PrivateTmp are empty. What is newer is kept
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

func putBackInSteps(ctx context.Context, dir string, o PutBackOptions, step stepper) ([]Change, error) {
	p, err := open(ctx, dir, o, step)
	if err != nil {
		return nil, err
	}
	defer p.dir.Close()
	return p.run(ctx)
}

// CutBack cuts files to these sizes, by their paths. What follows is kept beside each file, as
// PutBack does.
func CutBack(ctx context.Context, sizes map[string]int64, o PutBackOptions) ([]Change, error) {
	o.Time = o.time()
	p := &putBack{PutBackOptions: o, step: func(string) error { return nil }, taken: make(map[string]bool)}
	for path, size := range sizes {
		st, err := statPath(path)
		if err != nil {
			return nil, &RefusedError{Problems: []error{fmt.Errorf("%v: %w", name(path), err)}}
		}
		f := file{Paths: []name{name(path)}, Use: useAppend, Dev: uint64(st.Dev), Inode: st.Ino, Links: uint64(st.Nlink), Meta: metadataOf(st)}
		f.Meta.Size = size
		p.list.Files = append(p.list.Files, f)
	}
	return p.run(ctx)
}

func (p *putBack) run(ctx context.Context) ([]Change, error) {
	todos, err := p.plan(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.checkTrees(); err != nil {
		return nil, err
	}
	if err := p.note(todos, false); err != nil {
		return nil, err
	}
	// What is newer is on disk everywhere before anything is changed anywhere.
	for i := range todos {
		if err := p.keepNewer(ctx, &todos[i]); err != nil {
			return p.changes, err
		}
	}
	for i := range todos {
		if err := p.change(ctx, &todos[i]); err != nil {
			return p.changes, err
		}
	}
	for _, t := range p.list.Trees {
		if err := p.fill(ctx, t); err != nil {
			return p.changes, err
		}
	}
	return p.changes, p.note(todos, true)
}

// open reads the list, and checks the content against it.
func open(ctx context.Context, dir string, o PutBackOptions, step stepper) (*putBack, error) {
	l, err := readList(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	var contents []*content
	for i := range l.Files {
		contents = append(contents, &l.Files[i].Content)
	}
	for _, t := range l.Trees {
		for i := range t.Entries {
			contents = append(contents, &t.Entries[i].Content)
		}
	}
	if err := verifyAll(ctx, root, contents); err != nil {
		root.Close()
		return nil, err
	}
	o.Time = o.time()
	return &putBack{list: l, dir: root, PutBackOptions: o, step: step, taken: make(map[string]bool)}, nil
}

// plan finds out what is to be done about each file, and refuses what cannot be done.
func (p *putBack) plan(ctx context.Context) ([]todo, error) {
	var todos []todo
	var problems []error
	needs := make(room)
	for _, f := range p.list.Files {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if f.Use == useRead || f.Use == useMapped {
			if err := f.checkRead(); err != nil {
				problems = append(problems, err)
			}
			continue
		}
		todo, err := p.look(ctx, f, needs)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		todos = append(todos, todo)
	}
	if err := needs.check(); err != nil {
		problems = append(problems, err)
	}
	if len(problems) > 0 {
		return nil, &RefusedError{Problems: problems}
	}
	return todos, nil
}

// say adds a sentence for the user.
func (p *putBack) say(f file, kept, format string, args ...any) {
	p.changes = append(p.changes, Change{Path: string(f.Paths[0]), Kept: kept, Text: fmt.Sprintf(format, args...)})
}

// targets opens all paths of a file. The first one that exists is the file itself. If there
// is none, the first path is where it will be.
func (f file) targets() (targets, error) {
	var all targets
	for _, path := range f.Paths {
		t, err := openTarget(f, path)
		if err != nil {
			return nil, errors.Join(err, all.Close())
		}
		all = append(all, t)
	}
	for i, t := range all {
		if t.now != nil {
			all[0], all[i] = all[i], all[0]
			break
		}
	}
	return all, nil
}

// targets are the paths of one file.
type targets []*target

func (ts targets) Close() error {
	var err error
	for _, t := range ts {
		err = errors.Join(err, t.Close())
	}
	return err
}
