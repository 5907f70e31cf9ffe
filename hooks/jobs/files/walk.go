package files

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// walker lists what is in a directory of the job's own.
type walker struct {
	root    *os.File // the directory
	dev     uint64
	tree    tree
	names   map[inode]name // the first name of each file that has several
	inodes  map[inode]bool // all files
	leftOut []string
}

// openBelow opens what a path in the directory leads to, by no link and across no mount.
func openBelow(root *os.File, path name, flags int) (*os.File, error) {
	fd, err := unix.Openat2(int(root.Fd()), string(path), &unix.OpenHow{
		Flags:   uint64(unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC | flags),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	full := filepath.Join(root.Name(), string(path))
	if err != nil {
		return nil, fmt.Errorf("%v: %w", name(full), err)
	}
	return os.NewFile(uintptr(fd), full), nil
}

// walk lists a directory. Its data is to go into a file of the checkpoint.
func walk(ctx context.Context, dir, data string) (*walker, error) {
	handle, err := openPath(dir, unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", name(dir), err)
	}
	st, err := statOf(handle)
	if err != nil {
		handle.Close()
		return nil, err
	}
	w := &walker{
		root: handle, dev: uint64(st.Dev), tree: tree{Dir: name(dir), Data: data},
		names: make(map[inode]name), inodes: make(map[inode]bool),
	}
	for dirs := []name{"."}; len(dirs) > 0; dirs = dirs[1:] {
		if err := ctx.Err(); err != nil {
			w.Close()
			return nil, err
		}
		below, err := w.list(dirs[0])
		if gone(err) && dirs[0] != "." {
			continue
		}
		if err != nil {
			w.Close()
			return nil, err
		}
		dirs = append(dirs, below...)
	}
	start := int64(0)
	for i := range w.tree.Entries {
		c := &w.tree.Entries[i].Content
		if len(c.Extents) > 0 {
			c.Data, c.Start = data, start
			start += c.length()
		}
	}
	return w, nil
}

func (w *walker) Close() error { return w.root.Close() }

// list adds what is in one directory, and returns the directories among that.
func (w *walker) list(dir name) (below []name, err error) {
	handle, err := openBelow(w.root, dir, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	names, err := handle.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	for _, base := range names {
		path := name(filepath.Join(string(dir), base))
		var st unix.Stat_t
		err := unix.Fstatat(int(handle.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil {
			err = w.add(handle, path, base, st)
		}
		if gone(err) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("%v: %w", w.full(path), err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR && uint64(st.Dev) == w.dev {
			below = append(below, path)
		}
	}
	return below, nil
}

func (w *walker) full(path name) name { return name(filepath.Join(w.root.Name(), string(path))) }

func (w *walker) add(dir *os.File, path name, base string, st unix.Stat_t) error {
	e := entry{Path: path, Meta: metadataOf(st)}
	e.Meta.Size = 0
	if uint64(st.Dev) != w.dev {
		w.leftOut = append(w.leftOut, fmt.Sprintf("%v: something is mounted there", w.full(path)))
		return nil
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		e.Kind = kindDir
	case unix.S_IFREG:
		e.Kind = kindFile
	case unix.S_IFIFO:
		e.Kind = kindFIFO
	case unix.S_IFLNK:
		e.Kind = kindSymlink
	default:
		w.leftOut = append(w.leftOut, fmt.Sprintf("%v: it is %s", w.full(path), what(st)))
		return nil
	}
	w.inodes[inodeOf(st)] = true
	first, known := w.names[inodeOf(st)]
	var err error
	switch {
	case known:
		e.Kind, e.Target = kindLink, first
	case e.Kind == kindFile:
		e.Meta.Size = st.Size
		e.Content.Extents, err = w.extents(path, st)
	case e.Kind == kindSymlink:
		e.Target, err = readlinkAt(dir, base)
	}
	if err != nil {
		return err
	}
	if st.Nlink > 1 && e.Kind != kindDir && !known {
		w.names[inodeOf(st)] = path
	}
	w.tree.Entries = append(w.tree.Entries, e)
	return nil
}

func (w *walker) extents(path name, st unix.Stat_t) ([]extent, error) {
	if st.Blocks*512 >= st.Size {
		return inPieces([]span{{0, st.Size}}), nil // it has no holes
	}
	f, err := openBelow(w.root, path, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return extentsOf(f, st.Size)
}

func readlinkAt(dir *os.File, base string) (name, error) {
	buffer := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), base, buffer)
	if err != nil {
		return "", err
	}
	return name(buffer[:n]), nil
}

// bytes is the size of the data in the tree.
func (t tree) bytes() int64 {
	sum := int64(0)
	for _, e := range t.Entries {
		sum += e.Content.length()
	}
	return sum
}

// transfers are the copies that save the tree.
func (w *walker) transfers() []transfer {
	var all []transfer
	for i := range w.tree.Entries {
		e := &w.tree.Entries[i]
		if len(e.Content.Extents) > 0 {
			all = append(all, transfer{
				name: w.full(e.Path), content: &e.Content,
				open: func() (*os.File, error) { return openBelow(w.root, e.Path, 0) },
			})
		}
	}
	return all
}
