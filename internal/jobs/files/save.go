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

	"cucriu/internal/units"
)

// Foresee refuses what Save would refuse, and touches nothing. The tree may run.
func Foresee(ctx context.Context, root int, o Options) error {
	s := &survey{Options: o}
	return errors.Join(s.find(ctx, root), s.Close())
}

// Save records the files of the tree below root, and copies their content into dir. All
// processes of the tree must stand still. What it has written is not yet on disk, as the rest of
// an image.
func Save(ctx context.Context, root int, dir string, o Options) error {
	s := &survey{Options: o}
	defer s.Close()
	if err := s.find(ctx, root); err != nil {
		return err
	}
	if err := checkRoom(dir, s.bytes); err != nil {
		return err
	}
	target, err := os.OpenRoot(dir)
	if err == nil {
		err = errors.Join(copyAll(ctx, target, s.transfers), target.Close())
	}
	if err == nil {
		s.list.Version = listVersion
		err = s.list.write(dir)
	}
	if err != nil {
		return fmt.Errorf("save the job's files: %w", err)
	}
	return nil
}

// survey finds what a checkpoint has to save, and copies nothing.
type survey struct {
	Options
	list      list
	transfers []transfer
	bytes     int64
	links     []string   // where each file of the list can be opened, below /proc
	roots     []*os.Root // the directories of the job's own
}

func (s *survey) Close() (err error) {
	for _, root := range s.roots {
		err = errors.Join(err, root.Close())
	}
	return err
}

// large is a file that counts for a limit.
type large struct {
	path  string
	by    string // who writes it; "" if that is not known
	bytes int64
}

func (s *survey) find(ctx context.Context, root int) error {
	apart := make(map[inode]bool)
	var found []large
	for _, dir := range []string{s.Shm, s.PrivateTmp} {
		if dir == "" {
			continue
		}
		t, err := s.walk(ctx, dir, apart)
		if err != nil {
			return fmt.Errorf("%v: %w", name(dir), err)
		}
		for _, e := range t.Entries {
			found = append(found, large{path: filepath.Join(dir, string(e.Path)), bytes: e.Content.length()})
		}
		s.list.Trees = append(s.list.Trees, t)
	}
	if err := checkLimit("the job's own directories", cmp.Or(s.TreeLimit, DefaultTreeLimit), found); err != nil {
		return err
	}
	holds, err := scanTree(ctx, root, s.Except, apart)
	if err != nil {
		return err
	}
	for _, h := range holds {
		if err := s.add(h); err != nil && !gone(err) {
			return err
		}
	}
	what, found := "the files that the job has open for writing", nil
	if s.Elsewhere {
		what = "the files that move with the job"
	}
	for _, f := range s.list.Files {
		by := fmt.Sprintf(", written by process %d, %s", f.PID, f.Process)
		if s.Elsewhere {
			by = "" // it may only read the file
		}
		found = append(found, large{string(f.Paths[0]), by, f.Content.length()})
	}
	if err := checkLimit(what, cmp.Or(s.Limit, DefaultLimit), found); err != nil {
		return err
	}
	for i, link := range s.links {
		f := &s.list.Files[i]
		s.saves(f.Paths[0], &f.Content, func() (*os.File, error) { return openHeld(link) })
	}
	for i, t := range s.list.Trees {
		for j := range t.Entries {
			e := &t.Entries[j]
			s.saves(t.full(e.Path), &e.Content, func() (*os.File, error) { return openBelow(s.roots[i], string(e.Path)) })
		}
	}
	return nil
}

// saves adds a content to what is to be copied.
func (s *survey) saves(of name, c *content, open func() (*os.File, error)) {
	if len(c.Extents) > 0 {
		s.transfers = append(s.transfers, transfer{name: of, open: open, content: c})
		s.bytes += c.length()
	}
}

// checkLimit refuses files that are too large, and names the largest.
func checkLimit(what string, limit int64, files []large) error {
	sum := int64(0)
	for _, f := range files {
		sum += f.bytes
	}
	if sum <= limit {
		return nil
	}
	slices.SortStableFunc(files, func(a, b large) int { return cmp.Compare(b.bytes, a.bytes) })
	var named []string
	for _, f := range files[:min(3, len(files))] {
		if f.bytes == 0 {
			break
		}
		named = append(named, fmt.Sprintf("%v (%s%s)", name(f.path), units.Size(f.bytes), f.by))
	}
	return fmt.Errorf("%s hold %s, which is more than the limit of %s: the largest is %s", what, units.Size(sum), units.Size(limit), strings.Join(named, ", then "))
}

// add adds a file that the tree holds.
func (s *survey) add(h *held) error {
	if len(h.paths) == 0 && (h.isRemoved() || !h.written) {
		return nil // criu knows a way to it, or it fails
	}
	f := file{
		Paths: h.paths, Use: h.use(s.Options), PID: h.pid, Process: h.process(),
		Dev: uint64(h.stat.Dev), Inode: h.stat.Ino, Links: uint64(h.stat.Nlink),
		Meta: metadataOf(h.stat), MayBeShorter: !h.sized,
	}
	if s.Elsewhere {
		f.Dev, f.Inode = 0, 0          // they may be those of any file there
		f.Links = uint64(len(f.Paths)) // nor is another of its names the job's there
	}
	if len(h.paths) == 0 {
		return fmt.Errorf("%v, which process %d (%s) has open for writing, cannot be reached by this path: something is mounted over it, or the process has another root directory",
			h.hides, f.PID, f.Process)
	}
	if f.Use == useContent || f.Use == useAppend {
		if err := f.readHeld(h.link); gone(err) {
			return err
		} else if err != nil {
			return fmt.Errorf("%v, which process %d (%s) has open, cannot be read: %w", h.name(), f.PID, f.Process, err)
		}
	}
	if len(f.Content.Extents) > 0 {
		f.Content.Data = filePrefix + strconv.Itoa(len(s.list.Files))
	}
	s.list.Files, s.links = append(s.list.Files, f), append(s.links, h.link)
	return nil
}

// readHeld finds out where a file has data, or what its end is.
func (f *file) readHeld(link string) error {
	from, err := openHeld(link)
	if err != nil {
		return err
	}
	defer from.Close()
	if f.Use == useAppend {
		f.End, err = endingOf(from, f.Meta.Size)
	} else {
		f.Content.Extents, err = dataOf(from, 0, f.Meta.Size)
		f.Content.Extents = inPieces(f.Content.Extents)
	}
	return err
}

// openHeld opens a file that a process holds, by its link below /proc. This is the same
// inode, whatever has become of its path.
func openHeld(link string) (*os.File, error) {
	return os.OpenFile(link, os.O_RDONLY|unix.O_NONBLOCK, 0)
}

// walk lists a directory of the job's own, and adds its files to those that are known so.
func (s *survey) walk(ctx context.Context, dir string, apart map[inode]bool) (tree, error) {
	t := tree{Dir: name(dir), Data: treePrefix + strconv.Itoa(len(s.roots))}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return t, err
	}
	s.roots = append(s.roots, root)
	var top unix.Stat_t
	if err := unix.Stat(dir, &top); err != nil {
		return t, err
	}
	names := make(map[inode]name) // the first one of each file
	start := int64(0)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
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
		case st.Dev != top.Dev && d.IsDir():
			return fs.SkipDir
		case st.Dev != top.Dev:
			return nil // something is mounted there
		}
		e := entry{Path: name(strings.TrimPrefix(path, dir+"/")), Meta: metadataOf(st)}
		e.Meta.Size = 0
		switch first, known := names[inodeOf(st)]; {
		case known:
			e.Kind, e.Target = kindLink, first
		case d.IsDir():
			e.Kind = kindDir
		case d.Type().IsRegular():
			e.Kind, e.Meta.Size = kindFile, st.Size
			e.Content.Extents, err = dataIn(root, string(e.Path), st)
			if len(e.Content.Extents) > 0 {
				e.Content.Data, e.Content.Start = t.Data, start
				start += e.Content.length()
			}
		case d.Type() == fs.ModeNamedPipe:
			e.Kind = kindFIFO
		case d.Type() == fs.ModeSymlink:
			var target string
			target, err = os.Readlink(path)
			e.Kind, e.Target = kindSymlink, name(target)
		default:
			return nil // a socket, or a device
		}
		if gone(err) {
			return nil
		} else if err != nil {
			return err
		}
		if apart[inodeOf(st)] = true; !d.IsDir() {
			names[inodeOf(st)] = cmp.Or(names[inodeOf(st)], e.Path)
		}
		t.Entries = append(t.Entries, e)
		return nil
	})
	return t, err
}

// dataIn returns the parts of a file in a directory that are not holes.
func dataIn(root *os.Root, path string, st unix.Stat_t) ([]extent, error) {
	if st.Blocks*512 >= st.Size {
		return inPieces([]extent{{Length: st.Size}}), nil // it has no holes
	}
	f, err := openBelow(root, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	parts, err := dataOf(f, 0, st.Size)
	return inPieces(parts), err
}

// openBelow opens a file in a directory of the job's own.
func openBelow(root *os.Root, path string) (*os.File, error) {
	return root.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
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
