package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/records"
)

// The files in a checkpoint's directory.
const (
	listName   = "cucriu-files.json"
	filePrefix = "cucriu-file-" // and a number
	treePrefix = "cucriu-tree-"
)

const listVersion = 1

var listKind = records.Kind[list]{
	Name: listName, What: "the list of the job's files", Remedy: "resume from another checkpoint", Version: listVersion,
	Key: "list", Limit: 1 << 30, Dense: true, Volatile: true, Check: (*list).validate,
}

// list is what cucriu-files.json holds.
type list struct {
	Version int     `json:"version"`
	Files   []*file `json:"files"`
	Trees   []tree  `json:"trees"`
}

// use says what the tree does with a file, and so what is put back.
type use string

const (
	useRead    use = "read"    // it is open for reading only: it must be the same file
	useMapped  use = "mapped"  // the same, and it is mapped only: a program or a library
	useAppend  use = "append"  // every open of it only appends: the size is enough
	useContent use = "content" // all of it
)

// file is a regular file that the tree has open or mapped.
type file struct {
	Paths   []name   `json:"paths"` // by which the tree has it; several are hard links
	Use     use      `json:"use"`
	PID     int      `json:"pid"`     // of one of the processes that have it
	Process string   `json:"process"` // and its name
	Dev     uint64   `json:"dev"`
	Inode   uint64   `json:"inode"`
	Links   uint64   `json:"links"`
	Meta    metadata `json:"meta"`
	// MayBeShorter says that criu does not insist on the size: no open of it reads.
	MayBeShorter bool    `json:"may_be_shorter,omitempty"`
	End          *ending `json:"end,omitempty"` // of a file to which the tree only appends
	Content      content `json:"content"`
}

// metadata is what is known of a file besides its content.
type metadata struct {
	Size  int64  `json:"size"`
	Mode  uint32 `json:"mode"` // the permission bits, with setuid, setgid and sticky
	UID   uint32 `json:"uid"`
	GID   uint32 `json:"gid"`
	MTime int64  `json:"mtime"` // nanoseconds since 1970
}

func metadataOf(st unix.Stat_t) metadata {
	return metadata{Size: st.Size, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, MTime: st.Mtim.Nano()}
}

// ending tells whether a file still has what it had at its end, if it was not rotated.
type ending struct {
	Length int64  `json:"length"` // of what precedes the end
	CRC32C uint32 `json:"crc32c"`
}

// content is where the data of a file lies.
type content struct {
	Data    string   `json:"data,omitempty"`  // a file in the checkpoint's directory; "" if all is a hole
	Start   int64    `json:"start,omitempty"` // in it
	Extents []extent `json:"extents,omitempty"`
}

// extent is a part of a file that is not a hole. Its data follows that of the extent before.
type extent struct {
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
	CRC32C uint32 `json:"crc32c"`
}

// tree is a directory of the job's own.
type tree struct {
	Dir     name     `json:"dir"`
	Top     *entry   `json:"top,omitempty"` // the directory itself, if it was packed
	Data    string   `json:"data"`
	Entries []*entry `json:"entries"` // a directory before what is in it
}

func (t tree) full(path name) name { return name(filepath.Join(string(t.Dir), string(path))) }

// bytes is the size of the data in the tree.
func (t tree) bytes() (sum int64) {
	for _, e := range t.Entries {
		sum += e.Content.length()
	}
	return sum
}

// kind says what an entry is.
type kind string

const (
	kindDir     kind = "dir"
	kindFile    kind = "file"
	kindSymlink kind = "symlink"
	kindFIFO    kind = "fifo"
	kindSocket  kind = "socket"
	kindLink    kind = "link" // another name of a file that came before
)

// entry is a file, a directory or a link in a tree.
type entry struct {
	Path    name     `json:"path"` // in the tree
	Kind    kind     `json:"kind"`
	Meta    metadata `json:"meta"`
	Target  name     `json:"target,omitempty"` // of a symlink its text, of a link the other name
	Content content  `json:"content"`
	// Attributes are the extended ones, if it was packed.
	Attributes map[string][]byte `json:"attributes,omitempty"`
}

// DamagedError says that a checkpoint's files cannot be put back, because what was saved of
// them is damaged, or a newer cucriu has saved it.
type DamagedError struct {
	Path string // of the damaged file in the checkpoint's directory; "" if Err names it
	Err  error
}

func (e *DamagedError) Error() string {
	if e.Path == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("%s is damaged: %v", e.Path, e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// readList reads and checks the list of a checkpoint's directory.
func readList(dir string) (list, error) {
	l, err := listKind.Read(dir)
	if errors.Is(err, records.ErrDamaged) || errors.Is(err, records.ErrNewer) {
		return list{}, &DamagedError{Err: err}
	}
	return l, err
}

// Covered returns which paths a checkpoint's list covers: they are put back, and checked by [Check].
// The error is [fs.ErrNotExist] if the image in dir has no list.
func Covered(dir string) (func(path string) bool, error) {
	l, err := readList(dir)
	return l.covers, err
}

// Written returns what a checkpoint's list puts back: the files that the job was writing, and the directories of its own.
// The error is [fs.ErrNotExist] if the image in dir has no list.
func Written(dir string) (paths, trees []string, err error) {
	l, err := readList(dir)
	for _, f := range l.Files {
		for _, path := range f.Paths {
			if f.Use == useAppend || f.Use == useContent {
				paths = append(paths, string(path))
			}
		}
	}
	for _, t := range l.Trees {
		trees = append(trees, string(t.Dir))
	}
	return paths, trees, err
}

// TreeBytes returns how much data a checkpoint's list puts back into a directory of the job's own, at least.
func TreeBytes(dir, tree string) (sum int64) {
	l, _ := readList(dir) // who puts it back says what is wrong with it
	for _, t := range l.Trees {
		if string(t.Dir) == tree {
			sum += t.bytes()
		}
	}
	return sum
}

func (l list) covers(path string) bool {
	return slices.ContainsFunc(l.Files, func(f *file) bool { return slices.Contains(f.Paths, name(path)) }) ||
		slices.ContainsFunc(l.Trees, func(t tree) bool { return path == string(t.Dir) || strings.HasPrefix(path, string(t.Dir)+"/") })
}

// validate refuses a list that leads out of its files, or out of its directories.
func (l *list) validate() error {
	if l.Version != listVersion {
		return fmt.Errorf("it has version %d", l.Version)
	}
	for i, f := range l.Files {
		if f == nil || len(f.Paths) == 0 {
			return fmt.Errorf("file %d has no path", i)
		}
		for _, path := range f.Paths {
			if err := path.checkAbsolute(); err != nil {
				return fmt.Errorf("file %d: %w", i, err)
			}
		}
		if err := f.Content.validate(f.Meta.Size); err != nil {
			return fmt.Errorf("file %v: %w", f.Paths[0], err)
		}
	}
	for _, t := range l.Trees {
		if err := t.Dir.checkAbsolute(); err != nil {
			return err
		}
		for _, e := range t.Entries {
			if e == nil {
				return fmt.Errorf("%v has an empty entry", t.Dir)
			}
			if !filepath.IsLocal(string(e.Path)) || e.Path == "." {
				return fmt.Errorf("%q is not a path in a directory", string(e.Path))
			}
			if err := e.Content.validate(e.Meta.Size); err != nil {
				return fmt.Errorf("%v: %w", t.full(e.Path), err)
			}
		}
	}
	return nil
}

func (c *content) validate(size int64) error {
	end := int64(0)
	for _, e := range c.Extents {
		if e.Offset < end || e.Length <= 0 || e.Length > pieceSize || e.Offset > size-e.Length {
			return fmt.Errorf("the part of %d bytes at %d does not fit into it", e.Length, e.Offset)
		}
		end = e.end()
	}
	if size < 0 || c.Data != filepath.Base(c.Data) && c.Data != "" {
		return fmt.Errorf("%d bytes in %q are not valid content", size, c.Data)
	}
	return nil
}

func fileMode(mode uint32) os.FileMode {
	m := os.FileMode(mode & 0o777)
	for bit, flag := range map[uint32]os.FileMode{unix.S_ISUID: os.ModeSetuid, unix.S_ISGID: os.ModeSetgid, unix.S_ISVTX: os.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

func mtime(m metadata) time.Time { return time.Unix(0, m.MTime) }
