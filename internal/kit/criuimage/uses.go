package criuimage

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/fdinfo"
	file_lock "github.com/checkpoint-restore/go-criu/v7/crit/images/file-lock"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/memfd"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/tty"
	"google.golang.org/protobuf/proto"
)

// Uses is what a restore of images takes of the host, and what it finds there.
type Uses struct {
	Kinds   []string // of processes, files and images, in order
	Paths   []string // of files, FIFOs and sockets
	Bytes   int64    // of the images
	Threads int
	Locked  bool // there are locks on files
	// Unsafe says why even a restore in namespaces of its own would touch what the dumped job
	// has; empty if it would not.
	Unsafe string
}

const hugePages = "it has huge pages, which are allocated from the host's pool"

// ReadUses reads what a restore uses.
func ReadUses(dir string) (u Uses, err error) {
	info, err := Read(dir)
	if err != nil {
		return u, err
	}
	tree, err := ReadTree(dir)
	if err != nil {
		return u, err
	}
	if tree.OwnPIDs || tree.OwnMounts || tree.OwnNetwork {
		u.Unsafe = "it has namespaces of its own"
	}
	kinds := make(map[string]bool)
	for _, p := range info.Processes {
		kinds["process "+withoutDigits(p.Name)] = true
		u.Threads += p.Threads
		if p.State == stateDead {
			continue
		}
		if areas, err := ReadAreas(dir, p.PID); err != nil {
			return u, err
		} else if len(areas.Own) > 0 {
			u.Unsafe = hugePages
		}
	}
	found, err := Match(dir, "*.img")
	if err != nil {
		return u, err
	}
	for _, path := range found {
		info, err := os.Stat(path)
		if err != nil {
			return u, err
		}
		u.Bytes += info.Size()
		kind, _, _ := strings.Cut(filepath.Base(path), "-") // numbers come after it, some of them hexadecimal
		kinds["image "+kind] = true
	}
	err = eachEntry(dir, FilesName, "FILES", func(entry *fdinfo.FileEntry) {
		kinds["file "+entry.GetType().String()] = true
		if name := cmp.Or(socketPath(entry.GetUsk()), entry.GetReg().GetName()); name != "" {
			u.Paths = append(u.Paths, filepath.Join("/", name))
		}
	})
	u.Kinds = slices.Sorted(maps.Keys(kinds))
	const lease = 8 // FL_LEASE of criu's file-lock.h
	return u, errors.Join(err, eachEntry(dir, "filelocks.img", "FILE_LOCKS", func(lock *file_lock.FileLockEntry) {
		u.Locked = true
		if lock.GetFlag()&lease != 0 {
			u.Unsafe = "it holds a lease on a file, which is broken when another process opens it"
		}
	}), eachEntry(dir, "tty-info.img", "TTY_INFO", func(terminal *tty.TtyInfoEntry) {
		if !slices.Contains([]tty.TtyType{tty.TtyType_PTY, tty.TtyType_CTTY, tty.TtyType_EXT_TTY}, terminal.GetType()) {
			u.Unsafe = "it has a terminal that is a device of the host"
		}
	}), eachEntry(dir, "memfd.img", "MEMFD_INODE", func(file *memfd.MemfdInodeEntry) {
		if file.HugetlbFlag != nil {
			u.Unsafe = hugePages
		}
	}))
}

// eachEntry visits the entries of an image, which need not be there.
func eachEntry[T proto.Message](dir, name, kind string, visit func(T)) error {
	entries, err := readImage[T](dir, name, kind)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		visit(entry)
	}
	return err
}

func withoutDigits(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, name)
}
