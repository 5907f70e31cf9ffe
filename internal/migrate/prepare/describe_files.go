package prepare

import (
	"cmp"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// files collects what the processes of a tree use.
type files struct {
	tree        *inventory.Tree
	driverRoot  string
	byPath      map[string]*usedFile
	directories map[string]bool
	mounts      map[string]map[string]inventory.Mount // by mount namespace, then by mount id
	sockets     map[uint64]int                        // a process that holds a socket, by its inode
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
func (j *Job) addFiles(ctx context.Context, before *files, driverRoot string) (*files, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(betweenLooks):
	}
	later, err := inventory.Of(before.tree.PIDs)
	if err != nil {
		return nil, err
	}
	now := lookForFiles(later, driverRoot)
	maps.DeleteFunc(now.byPath, func(path string, f *usedFile) bool {
		earlier := before.byPath[path]
		// A new file often gets the inode that was freed last.
		return earlier == nil || earlier.Identity.Inode != f.Identity.Inode || earlier.born != f.born
	})
	maps.DeleteFunc(now.directories, func(path string, _ bool) bool { return !before.directories[path] })
	if err := now.findShared(); err != nil {
		return nil, err
	}
	for _, f := range now.byPath {
		j.Files = append(j.Files, f.File)
	}
	slices.SortFunc(j.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	j.Directories = slices.Sorted(maps.Keys(now.directories))
	return now, nil
}

func lookForFiles(tree *inventory.Tree, driverRoot string) *files {
	fs := &files{
		tree: tree, driverRoot: driverRoot, byPath: make(map[string]*usedFile), directories: make(map[string]bool),
		mounts: make(map[string]map[string]inventory.Mount), sockets: make(map[uint64]int),
	}
	for inode, f := range tree.Inodes("socket") {
		fs.sockets[inode] = f.Of.PID
	}
	for _, p := range tree.Processes {
		fs.add(p)
	}
	return fs
}

func (fs *files) add(p *inventory.Process) {
	for _, own := range p.Links() {
		if own.At != inventory.AtProgram { // which is mapped
			fs.look(own)
		}
	}
	fs.addMapped(p)
	for _, open := range p.Open() {
		f := fs.look(open)
		if f == nil {
			continue // closed in the meantime, or no file
		}
		info, err := open.Descriptor()
		if err != nil {
			continue
		}
		appends := info.Flags&unix.O_ACCMODE == unix.O_WRONLY && info.Flags&unix.O_APPEND != 0
		f.uses(info.Flags&unix.O_ACCMODE != unix.O_RDONLY, appends)
	}
}

// addMapped adds mapped files. The program itself and its libraries are among them.
func (fs *files) addMapped(p *inventory.Process) {
	for _, m := range p.Mapped() {
		if _, inode := m.Backing(); inode == 0 || !strings.HasPrefix(m.Link, "/") {
			continue
		}
		writes := m.Shared && m.Writable
		if f := fs.byPath[m.Link]; f != nil && f.mapped {
			f.uses(writes, false)
			continue // a library has some five mappings
		}
		f := fs.look(m.File)
		if f == nil {
			continue
		}
		f.uses(writes, false)
		f.mapped = true
		if !f.Pipe {
			f.BuildID = buildID(m.Path())
		}
	}
}

// look notes what a process uses. It returns nil if that is not a file of the job.
func (fs *files) look(of *inventory.File) *usedFile {
	path := of.Link
	if !filepath.IsAbs(path) {
		return nil
	}
	var stat unix.Statx_t
	const wanted = unix.STATX_BASIC_STATS | unix.STATX_BTIME | unix.STATX_MNT_ID
	if err := unix.Statx(unix.AT_FDCWD, of.Path(), 0, wanted, &stat); err != nil {
		return nil
	}
	kind := stat.Mode & unix.S_IFMT
	switch {
	case stat.Nlink == 0 || fs.ofDriver(path):
		return nil
	case kind == unix.S_IFDIR:
		fs.directories[path] = true
		return nil
	case kind != unix.S_IFREG && kind != unix.S_IFIFO:
		return nil
	}
	f := fs.byPath[path]
	if f == nil {
		f = &usedFile{File: File{
			Path: path, PID: of.Of.PID, Pipe: kind == unix.S_IFIFO, Mode: uint32(stat.Mode),
			UID: int(stat.Uid), GID: int(stat.Gid), Size: int64(stat.Size), Identity: identity(stat, fs.mountsOf(of.Of)),
		}, born: stat.Btime}
		fs.byPath[path] = f
	}
	return f
}

func (fs *files) mountsOf(p *inventory.Process) map[string]inventory.Mount {
	namespace := p.Namespace("mnt")
	if fs.mounts[namespace] == nil {
		fs.mounts[namespace] = byID(fs.tree.MountsOf(p))
	}
	return fs.mounts[namespace]
}

func byID(mounts []inventory.Mount) map[string]inventory.Mount {
	all := make(map[string]inventory.Mount)
	for _, m := range mounts {
		all[m.ID] = m
	}
	return all
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

func identity(stat unix.Statx_t, mounts map[string]inventory.Mount) Identity {
	id := Identity{
		Device: unix.Mkdev(stat.Dev_major, stat.Dev_minor), Inode: stat.Ino,
		Modified: time.Unix(stat.Mtime.Sec, int64(stat.Mtime.Nsec)).UTC(),
	}
	if m, known := mounts[strconv.FormatUint(stat.Mnt_id, 10)]; known {
		id.FileSystem, id.Source = m.Kind, proc.Printable(m.Source)
	}
	return id
}

// findShared finds the written files that processes outside of the tree have open for writing too.
func (fs *files) findShared() error {
	written := make(map[string]bool)
	for path, f := range fs.byPath {
		if f.Written {
			written[path] = true
		}
	}
	others, err := fs.tree.HoldersOutside(written)
	if err != nil {
		return err
	}
	for path, holders := range others {
		f := fs.byPath[path]
		for _, other := range holders {
			var stat unix.Stat_t
			info, err := os.Lstat(other.Path())
			if err != nil || info.Mode()&0o200 == 0 || unix.Stat(other.Path(), &stat) != nil ||
				stat.Ino != f.Identity.Inode || stat.Dev != f.Identity.Device {
				continue
			}
			now, err := proc.Tree(fs.tree.PIDs[0])
			if err != nil {
				return err
			}
			f.Shared = f.Shared || !slices.Contains(now, other.Of.PID) // the tree may have grown meanwhile
		}
	}
	return nil
}
