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
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/units"
)

// Foresee refuses what Save would refuse, and touches nothing. The tree may run.
func Foresee(ctx context.Context, root int, o Options) error {
	return unstalled(ctx, o.patience(), func(ctx context.Context, at *progress) error {
		advice, err := inventory.Advice(root)
		if err != nil {
			return err
		}
		return (&survey{Options: o, at: at}).find(ctx, advice)
	})
}

// Save records the files of a tree, and copies their content into dir. All processes of the tree must be stopped. What it
// has written is not yet on disk, as the rest of an image. It fails if a file makes it wait too long.
func Save(ctx context.Context, truth *inventory.Tree, dir string, o Options) error {
	return unstalled(ctx, o.patience(), func(ctx context.Context, at *progress) error {
		if err := truth.Read(); err != nil {
			return err
		}
		s := &survey{Options: o, at: at}
		if err := s.find(ctx, truth); err != nil {
			return err
		}
		if err := s.save(ctx, dir); err != nil {
			return fmt.Errorf("save the job's files: %w", err)
		}
		return nil
	})
}

func (s *survey) save(ctx context.Context, dir string) error {
	if err := checkRoom(dir, bytesOf(s.transfers)); err != nil {
		return err
	}
	target, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	if err := errors.Join(copyAll(ctx, target, s.transfers, s.at), target.Close()); err != nil {
		return err
	}
	s.list.Version = listVersion
	return listKind.Write(dir, s.list)
}

// survey finds what a checkpoint has to save, and copies nothing.
type survey struct {
	Options
	whole     bool // see [Pack]
	list      list
	transfers []transfer
	at        *progress
}

func (s *survey) find(ctx context.Context, tree *inventory.Tree) error {
	open, apart, err := scanTree(ctx, tree, s.Except, s.at) // first: it says whether files may be opened
	if err != nil {
		return err
	}
	for _, dir := range []string{s.Shm, s.PrivateTmp} {
		if dir == "" {
			continue
		}
		if err := s.walk(ctx, dir, apart); err != nil {
			return fmt.Errorf("%v: %w", name(dir), err)
		}
	}
	if err := checkLimit("the job's own directories", cmp.Or(s.TreeLimit, DefaultTreeLimit), s.transfers, "let the job keep less there"); err != nil {
		return err
	}
	own := len(s.transfers)
	for _, f := range open {
		if apart[inodeOf(f.stat)] {
			continue
		}
		s.at.reach(f.name())
		if err := s.add(f); err != nil && !gone(err) {
			return err
		}
	}
	what, remedy := "the files that the job has open for writing", "start or resume the job with a larger --files-limit, or let it open the file for appending"
	if s.Elsewhere {
		what, remedy = "the files that move with the job", "let it have the largest on a file system that both hosts have mounted"
	}
	return checkLimit(what, cmp.Or(s.Limit, DefaultLimit), s.transfers[own:], remedy)
}

// checkLimit refuses files that are too large, and names the largest.
func checkLimit(what string, limit int64, files []transfer, remedy string) error {
	sum := bytesOf(files)
	if sum <= limit {
		return nil
	}
	files = slices.Clone(files)
	slices.SortStableFunc(files, func(a, b transfer) int { return cmp.Compare(b.content.length(), a.content.length()) })
	var named []string
	for _, f := range files[:min(3, len(files))] {
		named = append(named, fmt.Sprintf("%v (%s%s)", f.name, units.Size(f.content.length()), f.by))
	}
	return fault.New(fmt.Sprintf("%s hold %s, which is more than the limit of %s: the largest is %s", what, units.Size(sum), units.Size(limit), strings.Join(named, ", then ")), remedy)
}

// add adds a file that the tree has open.
func (s *survey) add(o *openFile) error {
	if len(o.paths) == 0 && (o.isRemoved() || !o.written) {
		return nil // criu knows a way to it, or it fails
	}
	f := &file{
		Paths: o.paths, Use: o.use(s.Options), PID: o.pid, Process: o.process(),
		Dev: uint64(o.stat.Dev), Inode: o.stat.Ino, Links: uint64(o.stat.Nlink),
		Meta: metadataOf(o.stat), MayBeShorter: !o.sized,
	}
	by := fmt.Sprintf(", written by process %d, %s", f.PID, f.Process)
	if s.Elsewhere {
		f.Dev, f.Inode = 0, 0          // they may be those of any file there
		f.Links = uint64(len(f.Paths)) // nor is another of its names the job's there
		by = ""                        // it may only read the file
	}
	if len(o.paths) == 0 {
		return fmt.Errorf("%v, which process %d (%s) has open for writing, cannot be reached by this path: something is mounted over it, or the process has another root directory",
			o.hides, f.PID, f.Process)
	}
	if f.Use == useContent || f.Use == useAppend {
		if err := f.readOpen(o); gone(err) {
			return err
		} else if err != nil {
			return fmt.Errorf("%v, which process %d (%s) has open, cannot be read: %w", o.name(), f.PID, f.Process, err)
		}
	}
	if len(f.Content.Extents) > 0 {
		f.Content.Data = filePrefix + strconv.Itoa(len(s.list.Files))
		s.transfers = append(s.transfers, transfer{f.Paths[0], by, &f.Content, o.open})
	}
	s.list.Files = append(s.list.Files, f)
	return nil
}

// readOpen finds out where a file has data, or what its end is.
func (f *file) readOpen(o *openFile) (err error) {
	if f.Use != useAppend {
		f.Content.Extents, err = dataIn(o.reopen, o.stat)
		return err
	}
	from, err := o.open()
	if err != nil {
		return err
	}
	defer from.Close()
	f.End, err = endingOf(from, f.Meta.Size)
	return err
}

// walk lists a directory of the job's own, and adds its files to those that are known so.
func (s *survey) walk(ctx context.Context, dir string, apart map[inode]bool) error {
	t := tree{Dir: name(dir), Data: treePrefix + strconv.Itoa(len(s.list.Trees))}
	var top unix.Stat_t
	if err := unix.Stat(dir, &top); err != nil {
		return err
	}
	if s.whole {
		t.Top = &entry{Path: ".", Kind: kindDir, Meta: metadataOf(top)}
		if err := t.Top.readAttributes(dir); err != nil {
			return err
		}
	}
	names := make(map[inode]name) // the first one of each file
	start := int64(0)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		s.at.reach(name(path))
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case path == dir && err == nil && !d.IsDir():
			return unix.ENOTDIR
		case path == dir:
			return err
		case gone(err):
			return nil // removed meanwhile
		case err != nil:
			return err
		case st.Dev != top.Dev && s.whole:
			return fault.New(name(path).String()+" is on another file system, and would be missing", "unmount it")
		case st.Dev != top.Dev && d.IsDir():
			return fs.SkipDir
		case st.Dev != top.Dev:
			return nil // something is mounted there
		}
		e := &entry{Path: name(strings.TrimPrefix(path, dir+"/")), Meta: metadataOf(st)}
		e.Meta.Size = 0
		open := func() (*os.File, error) { return openAt(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_NONBLOCK) }
		switch first, known := names[inodeOf(st)]; {
		case known:
			e.Kind, e.Target = kindLink, first
		case d.IsDir():
			e.Kind = kindDir
		case d.Type().IsRegular():
			e.Kind, e.Meta.Size = kindFile, st.Size
			e.Content.Extents, err = dataIn(open, st)
		case d.Type() == fs.ModeNamedPipe:
			e.Kind = kindFIFO
		case d.Type() == fs.ModeSymlink:
			var target string
			target, err = os.Readlink(path)
			e.Kind, e.Target = kindSymlink, name(target)
		case s.whole && d.Type() == fs.ModeSocket:
			e.Kind = kindSocket
		case s.whole:
			err = fault.New(e.Path.String()+" is a device, which is not copied", "remove it")
		default:
			return nil // a socket, or a device
		}
		if err == nil && s.whole && e.Kind != kindLink && e.Kind != kindSymlink {
			err = e.readAttributes(path)
		}
		if gone(err) {
			return nil
		} else if err != nil {
			return err
		}
		if apart[inodeOf(st)] = true; !d.IsDir() {
			names[inodeOf(st)] = cmp.Or(names[inodeOf(st)], e.Path)
		}
		if len(e.Content.Extents) > 0 {
			e.Content.Data, e.Content.Start = t.Data, start
			start += e.Content.length()
			s.transfers = append(s.transfers, transfer{name(path), "", &e.Content, func() (source, error) { return open() }})
		}
		t.Entries = append(t.Entries, e)
		return nil
	})
	s.list.Trees = append(s.list.Trees, t)
	return err
}

// dataIn returns the parts of a file that are not holes.
func dataIn(open func() (*os.File, error), st unix.Stat_t) ([]extent, error) {
	if st.Blocks*512 >= st.Size {
		return inPieces([]extent{{Length: st.Size}}), nil
	}
	f, err := open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return dataOf(f, 0, st.Size)
}

// checkRoom refuses to write more into a directory than fits.
func checkRoom(dir string, bytes int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("room in %s: %w", dir, err)
	}
	if free := int64(fs.Bfree) * fs.Bsize; free < bytes {
		return fmt.Errorf("the job's files need %s in %s, which has %s left: %w", units.Size(bytes), filepath.Clean(dir), units.Size(free), unix.ENOSPC)
	}
	return nil
}

// Sync waits until the files of which the checkpoint in dir holds only the size are on disk.
// Otherwise they could be shorter after a crash of the host, and the checkpoint could not be
// restored. It is called before the checkpoint counts as complete. The job may run.
func Sync(ctx context.Context, dir string) error {
	l, err := readList(dir)
	if err != nil {
		return err
	}
	for _, f := range l.Files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if f.Use != useAppend && f.Use != useRead {
			continue
		}
		t, err := openTarget(f.Paths[0])
		if err != nil {
			continue // the job has moved its directory
		}
		if t.now != nil && inodeOf(t.stat) == (inode{f.Dev, f.Inode}) {
			err = t.withFile(unix.O_RDONLY, (*os.File).Sync)
		}
		if t.Close(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EROFS) {
			return fmt.Errorf("wait until %v is on disk: %w", f.Paths[0], err)
		}
	}
	return nil
}
