package prepare

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
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
)

// files collects what the processes of a tree use.
type files struct {
	driverRoot  string
	byPath      map[string]*usedFile
	directories map[string]bool
	mounts      map[string]map[int]*procfs.MountInfo // by mount namespace, then by mount id
	sockets     map[uint64]int                       // a process that holds a socket, by its inode
}

// usedFile is a file with what is known of its uses so far.
type usedFile struct {
	File
	used, mapped bool
	born         unix.StatxTimestamp // zero if the file system does not say
}

// betweenLooks is how long a file must be in use to count. Programs write a new file under another
// name and rename it, and nobody needs such a file at the destination.
const betweenLooks = 100 * time.Millisecond

// addFiles adds the files and directories that the processes have open or mapped for more than a
// moment. It leaves out what has no name any more, which goes into the image. It returns what was seen
// last.
func (j *Job) addFiles(ctx context.Context, pids []int, driverRoot string) (*files, error) {
	before, err := lookForFiles(pids, driverRoot)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(betweenLooks):
	}
	now, err := lookForFiles(pids, driverRoot)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(now.byPath, func(path string, f *usedFile) bool {
		earlier := before.byPath[path]
		// A new file often gets the inode that was freed last.
		return earlier == nil || earlier.Identity.Inode != f.Identity.Inode || earlier.born != f.born
	})
	maps.DeleteFunc(now.directories, func(path string, _ bool) bool { return !before.directories[path] })
	if err := now.findShared(pids); err != nil {
		return nil, err
	}
	for _, f := range now.byPath {
		j.Files = append(j.Files, f.File)
	}
	slices.SortFunc(j.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	j.Directories = slices.Sorted(maps.Keys(now.directories))
	return now, nil
}

func lookForFiles(pids []int, driverRoot string) (*files, error) {
	fs := &files{
		driverRoot: driverRoot, byPath: make(map[string]*usedFile), directories: make(map[string]bool),
		mounts: make(map[string]map[int]*procfs.MountInfo), sockets: make(map[uint64]int),
	}
	for i, pid := range pids {
		err := fs.add(pid)
		if errors.Is(err, proc.ErrGone) && i > 0 {
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	return fs, nil
}

func (fs *files) add(pid int) error {
	mounts, err := fs.mountsOf(pid)
	if err != nil {
		return err
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	for _, name := range []string{"cwd", "root"} {
		_, _ = fs.look(filepath.Join(dir, name), pid, mounts) // of a process that has ended there is none
	}
	if err := fs.addMapped(pid, dir, mounts); err != nil {
		return err
	}
	open, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return proc.GoneOr(pid, err)
	}
	for _, entry := range open {
		f, err := fs.look(filepath.Join(dir, "fd", entry.Name()), pid, mounts)
		if f == nil || err != nil {
			continue // closed in the meantime, or no file
		}
		info, err := proc.ReadDescriptor(pid, entry.Name())
		if err != nil {
			continue
		}
		appends := info.Flags&unix.O_ACCMODE == unix.O_WRONLY && info.Flags&unix.O_APPEND != 0
		f.uses(info.Flags&unix.O_ACCMODE != unix.O_RDONLY, appends)
	}
	return nil
}

// addMapped adds mapped files. The program itself and its libraries are among them.
func (fs *files) addMapped(pid int, dir string, mounts map[int]*procfs.MountInfo) error {
	mappings, err := proc.Mappings(pid)
	if err != nil {
		return err
	}
	for _, m := range mappings {
		if m.Inode == 0 || !strings.HasPrefix(m.Pathname, "/") {
			continue
		}
		writes := m.Perms.Shared && m.Perms.Write
		if f := fs.byPath[m.Pathname]; f != nil && f.mapped {
			f.uses(writes, false)
			continue // a library has some five mappings
		}
		link := filepath.Join(dir, "map_files", fmt.Sprintf("%x-%x", m.StartAddr, m.EndAddr))
		f, err := fs.look(link, pid, mounts)
		if f == nil || err != nil {
			continue
		}
		f.uses(writes, false)
		f.mapped = true
		if !f.Pipe {
			f.BuildID = buildID(link)
		}
	}
	return nil
}

// look notes what a link in /proc leads to. It returns nil if that is not a file of the job.
func (fs *files) look(link string, pid int, mounts map[int]*procfs.MountInfo) (*usedFile, error) {
	path, err := os.Readlink(link)
	if err != nil {
		return nil, err
	}
	if number, is := strings.CutPrefix(path, "socket:["); is {
		inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
		if fs.sockets[inode] == 0 {
			fs.sockets[inode] = pid
		}
		return nil, err
	}
	if !filepath.IsAbs(path) {
		return nil, nil
	}
	var stat unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, link, 0, unix.STATX_BASIC_STATS|unix.STATX_BTIME|unix.STATX_MNT_ID, &stat); err != nil {
		return nil, err
	}
	kind := stat.Mode & unix.S_IFMT
	switch {
	case stat.Nlink == 0 || fs.ofDriver(path):
		return nil, nil
	case kind == unix.S_IFDIR:
		fs.directories[path] = true
		return nil, nil
	case kind != unix.S_IFREG && kind != unix.S_IFIFO:
		return nil, nil
	}
	f := fs.byPath[path]
	if f == nil {
		f = &usedFile{File: File{
			Path: path, PID: pid, Pipe: kind == unix.S_IFIFO, Mode: uint32(stat.Mode), UID: int(stat.Uid), GID: int(stat.Gid), Size: int64(stat.Size), Identity: identity(stat, mounts),
		}, born: stat.Btime}
		fs.byPath[path] = f
	}
	return f, nil
}

// ofDriver says that a file is the driver's own, which a checkpoint closes. The device nodes of a
// real driver are no regular files; a simulated one keeps its files below its root.
func (fs *files) ofDriver(path string) bool {
	return fs.driverRoot != "/" && strings.HasPrefix(path, filepath.Clean(fs.driverRoot)+"/")
}

// uses notes one use of the file.
func (f *usedFile) uses(writes, appends bool) {
	f.AppendOnly = appends && (!f.used || f.AppendOnly)
	f.Written = f.Written || writes
	f.used = true
}

func identity(stat unix.Statx_t, mounts map[int]*procfs.MountInfo) Identity {
	id := Identity{
		Device: unix.Mkdev(stat.Dev_major, stat.Dev_minor), Inode: stat.Ino,
		Modified: time.Unix(stat.Mtime.Sec, int64(stat.Mtime.Nsec)).UTC(),
	}
	if m := mounts[int(stat.Mnt_id)]; m != nil {
		id.FileSystem, id.Source = m.FSType, proc.Printable(m.Source)
	}
	return id
}

// findShared finds the written files that processes outside of the tree have open for writing too.
func (fs *files) findShared(tree []int) error {
	if !slices.ContainsFunc(slices.Collect(maps.Values(fs.byPath)), func(f *usedFile) bool { return f.Written }) {
		return nil
	}
	all, err := proc.All()
	if err != nil {
		return err
	}
	for _, pid := range all {
		if slices.Contains(tree, pid) {
			continue
		}
		dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended
		}
		for _, entry := range entries {
			link := filepath.Join(dir, entry.Name())
			path, err := os.Readlink(link)
			f := fs.byPath[path]
			if err != nil || f == nil || !f.Written {
				continue
			}
			var stat unix.Stat_t
			info, err := os.Lstat(link)
			if err != nil || info.Mode()&0o200 == 0 || unix.Stat(link, &stat) != nil || stat.Ino != f.Identity.Inode || stat.Dev != f.Identity.Device {
				continue
			}
			now, err := proc.Tree(tree[0])
			if err != nil {
				return err
			}
			f.Shared = f.Shared || !slices.Contains(now, pid) // the tree may have grown meanwhile
		}
	}
	return nil
}
