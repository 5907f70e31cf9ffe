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

// Foresee refuses what Save would refuse, and touches nothing. The tree may run.
func Foresee(ctx context.Context, root int, o Options) error {
	s, err := survey(ctx, root, o)
	if err != nil {
		return err
	}
	return s.Close()
}

// Save records the files of the tree below root, and copies their content into dir. All
// processes of the tree must stand still. If the limits are exceeded, it fails with a
// [*LimitError], and has copied nothing.
//
// What it has written is not yet on disk, as the rest of an image.
func Save(ctx context.Context, root int, dir string, o Options) (Summary, error) {
	s, err := survey(ctx, root, o)
	if err != nil {
		return Summary{}, err
	}
	defer s.Close()
	if err := checkRoom(dir, s.summary.Bytes+s.summary.TreeBytes); err != nil {
		return Summary{}, err
	}
	target, err := os.OpenRoot(dir)
	if err != nil {
		return Summary{}, fmt.Errorf("save the job's files: %w", err)
	}
	defer target.Close()
	if err := copyAll(ctx, target, s.transfers()); err != nil {
		return Summary{}, err
	}
	l := list{Version: listVersion, Files: s.files}
	for _, w := range s.trees {
		l.Trees = append(l.Trees, w.tree)
	}
	if err := l.write(dir); err != nil {
		return Summary{}, fmt.Errorf("save the job's files: %w", err)
	}
	return s.summary, nil
}

// surveyed is what a checkpoint has to save. Nothing was copied yet.
type surveyed struct {
	files   []file
	links   []string // where each of them can be opened, below /proc
	trees   []*walker
	summary Summary
}

func (s *surveyed) Close() error {
	var err error
	for _, w := range s.trees {
		err = errors.Join(err, w.Close())
	}
	return err
}

// survey finds out what there is to save, and refuses what cannot be.
func survey(ctx context.Context, root int, o Options) (*surveyed, error) {
	s := &surveyed{}
	if err := s.find(ctx, root, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *surveyed) find(ctx context.Context, root int, o Options) error {
	apart := make(map[inode]bool)
	var large []Large
	for i, dir := range o.trees() {
		w, err := walk(ctx, dir, treePrefix+strconv.Itoa(i))
		if err != nil {
			return err
		}
		s.trees = append(s.trees, w)
		for id := range w.inodes {
			apart[id] = true
		}
		for _, e := range w.tree.Entries {
			if n := e.Content.length(); n > 0 {
				large = append(large, Large{Path: string(w.full(e.Path)), Bytes: n})
			}
		}
		s.summary.TreeEntries += len(w.tree.Entries)
		s.summary.TreeBytes += w.tree.bytes()
		s.summary.LeftOut = append(s.summary.LeftOut, w.leftOut...)
	}
	if err := checkLimit("the job's own directories", o.treeLimit(), large); err != nil {
		return err
	}
	holds, err := scanTree(ctx, root, o.Except, apart)
	if err != nil {
		return err
	}
	large = nil
	for _, h := range holds {
		if err := s.addFile(h, o); err != nil && !gone(err) {
			return err
		}
	}
	what := "the files that the job has open for writing"
	if o.Elsewhere {
		what = "the files that move with the job"
	}
	for _, f := range s.files {
		l := Large{Path: string(f.Paths[0]), Bytes: f.Content.length(), PID: f.PID, Process: f.Process}
		if o.Elsewhere {
			l.PID = 0 // it may only read the file
		}
		if l.Bytes > 0 {
			large = append(large, l)
		}
	}
	return checkLimit(what, o.limit(), large)
}

// addFile adds a file that the tree holds.
func (s *surveyed) addFile(h *held, o Options) error {
	if len(h.paths) == 0 && (h.isRemoved() || !h.written) {
		return nil // criu knows a way to it, or it fails
	}
	f := file{
		Paths: h.paths, Use: h.use(o), PID: h.pid, Process: h.process(),
		Dev: uint64(h.stat.Dev), Inode: h.stat.Ino, Links: uint64(h.stat.Nlink),
		Meta: metadataOf(h.stat), MayBeShorter: !h.sized,
	}
	if o.Elsewhere {
		f.Dev, f.Inode = 0, 0          // they may be those of any file there
		f.Links = uint64(len(f.Paths)) // nor is another of its names the job's there
	}
	if h.written && h.hides != "" && !h.isRemoved() && len(h.paths) == 0 {
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
	switch f.Use {
	case useContent:
		if len(f.Content.Extents) > 0 {
			f.Content.Data = filePrefix + strconv.Itoa(len(s.files))
		}
		s.summary.Files++
		s.summary.Bytes += f.Content.length()
	case useAppend:
		s.summary.Appended++
	default:
		s.summary.Checked++
	}
	s.files, s.links = append(s.files, f), append(s.links, h.link)
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
		f.Content.Extents, err = extentsOf(from, f.Meta.Size)
	}
	return err
}

// openHeld opens a file that a process holds, by its link below /proc. This is the same
// inode, whatever has become of its path.
func openHeld(link string) (*os.File, error) {
	fd, err := unix.Open(link, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", link, err)
	}
	return os.NewFile(uintptr(fd), link), nil
}

// transfers are the copies that save everything.
func (s *surveyed) transfers() []transfer {
	var all []transfer
	for i := range s.files {
		f := &s.files[i]
		if len(f.Content.Extents) > 0 {
			link := s.links[i]
			all = append(all, transfer{
				name: f.Paths[0], content: &f.Content,
				open: func() (*os.File, error) { return openHeld(link) },
			})
		}
	}
	for _, w := range s.trees {
		all = append(all, w.transfers()...)
	}
	return all
}

// checkRoom refuses to write more into a directory than fits.
func checkRoom(dir string, bytes int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("room in %s: %w", dir, err)
	}
	if free := int64(fs.Bfree) * fs.Bsize; free < bytes {
		return fmt.Errorf("the job's files need %s in %s, which has %s left: %w", size(bytes), filepath.Clean(dir), size(free), unix.ENOSPC)
	}
	return nil
}
