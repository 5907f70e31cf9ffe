package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// The files in a checkpoint's directory.
const (
	listName   = "cucriu-files.json"
	filePrefix = "cucriu-file-" // and a number
	treePrefix = "cucriu-tree-"
)

const listVersion = 1

// list is what cucriu-files.json holds.
type list struct {
	Version int    `json:"version"`
	Files   []file `json:"files"`
	Trees   []tree `json:"trees"`
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
	Dir     name    `json:"dir"`
	Data    string  `json:"data"`
	Entries []entry `json:"entries"` // a directory before what is in it
}

// kind says what an entry is.
type kind string

const (
	kindDir     kind = "dir"
	kindFile    kind = "file"
	kindSymlink kind = "symlink"
	kindFIFO    kind = "fifo"
	kindLink    kind = "link" // another name of a file that came before
)

// entry is a file, a directory or a link in a tree.
type entry struct {
	Path    name     `json:"path"` // in the tree
	Kind    kind     `json:"kind"`
	Meta    metadata `json:"meta"`
	Target  name     `json:"target,omitempty"` // of a symlink its text, of a link the other name
	Content content  `json:"content"`
}

// sealed is the outermost value of the file.
type sealed struct {
	CRC32C uint32          `json:"crc32c"` // of List as it stands
	List   json.RawMessage `json:"list"`
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// write puts the list into a checkpoint's directory, and waits until it is on disk.
func (l list) write(dir string) error {
	raw, err := json.Marshal(l)
	if err != nil {
		return err
	}
	data, err := json.Marshal(sealed{CRC32C: crc32.Checksum(raw, castagnoli()), List: raw})
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(dir, listName), append(data, '\n'), 0o600, renameio.WithTempDir(dir))
}

// DamagedError says that a checkpoint's files cannot be put back, because what was saved of
// them is damaged.
type DamagedError struct {
	Path string // of the damaged file in the checkpoint's directory
	Err  error
}

func (e *DamagedError) Error() string { return fmt.Sprintf("%s is damaged: %v", e.Path, e.Err) }

func (e *DamagedError) Unwrap() error { return e.Err }

// readList reads and checks the list of a checkpoint's directory.
func readList(dir string) (list, error) {
	path := filepath.Join(dir, listName)
	data, err := os.ReadFile(path)
	if err != nil {
		return list{}, fmt.Errorf("the list of the job's files: %w", err)
	}
	l, err := unseal(data)
	if err != nil {
		return list{}, &DamagedError{Path: path, Err: err}
	}
	return l, nil
}

// Covered returns which paths a checkpoint's list covers: they are put back, and checked by [Check].
// The error is [fs.ErrNotExist] if the image in dir has no list.
func Covered(dir string) (func(path string) bool, error) {
	l, err := readList(dir)
	paths := make(map[string]bool)
	for _, f := range l.Files {
		for _, path := range f.Paths {
			paths[string(path)] = true
		}
	}
	return func(path string) bool {
		return paths[path] || slices.ContainsFunc(l.Trees, func(t tree) bool { return path == string(t.Dir) || strings.HasPrefix(path, string(t.Dir)+"/") })
	}, err
}

func unseal(data []byte) (list, error) {
	var s sealed
	if err := decodeStrictly(data, &s); err != nil {
		return list{}, err
	}
	if crc := crc32.Checksum(s.List, castagnoli()); crc != s.CRC32C {
		return list{}, fmt.Errorf("its checksum is %08x, not %08x", crc, s.CRC32C)
	}
	return decodeList(s.List)
}

func decodeList(raw []byte) (list, error) {
	var l list
	if err := decodeStrictly(raw, &l); err != nil {
		return list{}, err
	}
	if l.Version != listVersion {
		return list{}, fmt.Errorf("its version is %d: this program knows version %d", l.Version, listVersion)
	}
	if err := l.validate(); err != nil {
		return list{}, err
	}
	return l, nil
}

func decodeStrictly(data []byte, value any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(value); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more follows its end")
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
