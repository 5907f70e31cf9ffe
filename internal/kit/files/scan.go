package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// openFile is a regular file that processes of the tree have open or mapped.
type openFile struct {
	stat  unix.Stat_t
	paths []name // by which it is open, without those that lead to another file
	hides name   // a path that leads to none, or to another file; "" if there is none
	link  string // the file itself, below /proc
	pid   int    // of a process that has it; if one can write it, of such a one
	// readable are the process and the number of a descriptor by which it can be read; nil if there is none.
	readable *descriptor

	written  bool // somebody can write it
	inserted bool // somebody can write it elsewhere than at its end, or has mapped it for writing
	sized    bool // somebody has it otherwise than only to append: criu insists on its size
	opened   bool // somebody has it open, not only mapped
}

type descriptor struct{ pid, number int }

func (f *openFile) use(o Options) use {
	switch {
	case f.written && (f.inserted || o.Elsewhere), f.isAmong(o.Also):
		return useContent
	case f.written:
		return useAppend
	case f.opened:
		return useRead
	}
	return useMapped
}

func (f *openFile) isAmong(wanted map[string]uint64) bool {
	return slices.ContainsFunc(f.paths, func(path name) bool {
		ino, found := wanted[string(path)]
		return found && ino == f.stat.Ino
	})
}

// scan finds the files that the processes of a tree have open.
type scan struct {
	files  map[inode]*openFile
	except map[name]bool
	apart  map[inode]bool // the files of Except
	at     *progress
	// What was seen already: a tree has the same libraries in each process.
	mapped   map[inode]bool  // as /proc/PID/maps names them
	ofKernel map[uint64]bool // by device
}

// scanTree finds the files of a tree, and refuses one that controls who opens files. What ends or
// is closed meanwhile is left out, and what is apart from what a checkpoint saves.
func scanTree(ctx context.Context, tree *inventory.Tree, except []string, at *progress) (
	files []*openFile, apart map[inode]bool, err error,
) {
	s := scan{
		files: make(map[inode]*openFile), except: make(map[name]bool), apart: make(map[inode]bool), at: at,
		mapped: make(map[inode]bool), ofKernel: make(map[uint64]bool),
	}
	for _, path := range except {
		// These paths are the user's own, and may lead through links.
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		s.except[name(path)] = true
		if st, err := statPath(path); err == nil {
			s.apart[inodeOf(st)] = true
		}
	}
	if err := tree.CheckUnguarded(); err != nil {
		return nil, nil, err
	}
	for _, p := range tree.Processes {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		if err := errors.Join(s.descriptors(p), s.mappings(p)); err != nil && !gone(err) {
			return nil, nil, err
		}
	}
	return slices.SortedFunc(maps.Values(s.files), func(a, b *openFile) int { return cmp.Compare(a.name(), b.name()) }), s.apart, nil
}

func gone(err error) bool {
	return errors.Is(err, proc.ErrGone) || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

func (s *scan) descriptors(p *inventory.Process) error {
	for _, open := range p.Open() {
		f, err := s.look(open)
		var info proc.DescriptorInfo
		if err == nil && f != nil {
			info, err = open.Descriptor()
		}
		if gone(err) || err == nil && f == nil {
			continue
		}
		if err != nil {
			return err
		}
		if reads, _ := info.Access(); reads && info.Flags&unix.O_DIRECT == 0 && f.readable == nil {
			number, _ := strconv.Atoi(open.Number)
			f.readable = &descriptor{p.PID, number}
		}
		appends, access := info.Flags&unix.O_APPEND != 0, info.Flags&unix.O_ACCMODE
		f.opened = true
		f.sized = f.sized || access != unix.O_WRONLY || !appends
		if access != unix.O_RDONLY {
			f.writes(p.PID, !appends)
		}
	}
	return nil
}

func (f *openFile) writes(pid int, inserts bool) {
	if !f.written {
		f.pid = pid
	}
	f.written = true
	f.inserted = f.inserted || inserts
}

func (s *scan) mappings(p *inventory.Process) error {
	for _, m := range p.Mapped() {
		device, number := m.Backing()
		key := inode{device, number}
		if number == 0 || !strings.HasPrefix(m.Link, "/") || !m.Shared && s.mapped[key] {
			continue // no file, or another part of the same program or library
		}
		s.mapped[key] = true
		f, err := s.look(m.File)
		if gone(err) || err == nil && f == nil {
			continue
		}
		if err != nil {
			return err
		}
		f.sized = true
		// The link has the rights with which the file was opened for the mapping. A mapping
		// that is read-only now may have been writable, and may be so again.
		if info, err := os.Lstat(m.Path()); m.Shared && err == nil && info.Mode()&0o200 != 0 {
			f.writes(p.PID, true)
		}
	}
	return nil
}

// look adds a file that a process has open. It returns nil if that does not belong to a
// checkpoint.
func (s *scan) look(of *inventory.File) (*openFile, error) {
	link := of.Path()
	s.at.reach(name(link))
	var st unix.Stat_t
	if err := unix.Stat(link, &st); err != nil {
		return nil, fmt.Errorf("%s: %w", link, err)
	}
	// criu puts a file without any name into its image.
	if !isRegular(st) || st.Nlink == 0 || s.apart[inodeOf(st)] {
		return nil, nil
	}
	kernel, known := s.ofKernel[uint64(st.Dev)]
	if !known {
		var err error
		if kernel, err = isOfTheKernel(link); err != nil {
			return nil, err
		}
		s.ofKernel[uint64(st.Dev)] = kernel
	}
	text := of.Link
	for fresh := false; ; fresh = true {
		path := name(text)
		if kernel || s.except[path] {
			return nil, nil
		}
		f := s.files[inodeOf(st)]
		if f != nil && (slices.Contains(f.paths, path) || f.hides == path) {
			return f, nil
		}
		// A removed name may exist as "NAME (deleted)": then it was made so for criu.
		at, err := statPath(text)
		leads := err == nil && inodeOf(at) == inodeOf(st)
		if !leads && !fresh { // the name may have been removed since it was read, or another file is open in its place
			if text, err = os.Readlink(link); err != nil {
				return nil, fmt.Errorf("%s: %w", link, err)
			}
			continue
		}
		if f == nil {
			f = &openFile{stat: st, link: link, pid: of.Of.PID}
			s.files[inodeOf(st)] = f
		}
		if leads {
			f.paths = append(f.paths, path)
			slices.Sort(f.paths)
		} else {
			f.hides = path
		}
		return f, nil
	}
}

// name names the file in messages.
func (f *openFile) name() name {
	if len(f.paths) > 0 {
		return f.paths[0]
	}
	return f.hides
}

// isRemoved reports whether all names by which the file is open were removed. It has others:
// criu finds a way to it.
func (f *openFile) isRemoved() bool {
	return len(f.paths) == 0 && strings.HasSuffix(string(f.hides), " (deleted)")
}

// process names the process that has the file open.
func (f *openFile) process() string {
	status, err := proc.ReadStatus(f.pid)
	if err != nil {
		return ""
	}
	return status.Name
}

// isOfTheKernel reports whether a file is not of a disk or of memory, but shows the kernel.
func isOfTheKernel(link string) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(link, &fs); err != nil {
		return false, fmt.Errorf("%s: %w", link, err)
	}
	switch int64(fs.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
		unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC,
		unix.PSTOREFS_MAGIC, unix.EFIVARFS_MAGIC, unix.NSFS_MAGIC, unix.HUGETLBFS_MAGIC,
		unix.SELINUX_MAGIC, unix.BINFMTFS_MAGIC, mqueueMagic:
		return true, nil
	}
	return false, nil
}

const mqueueMagic = 0x19800202 // POSIX message queues; x/sys/unix does not have it
