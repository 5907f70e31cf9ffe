package files

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Made is a file that was missing and is made, or a directory. It is known before it has its name,
// so that whoever is killed meanwhile leaves nothing that cannot be found: see [Unmake].
type Made struct {
	Path      name      `json:"path"`
	Directory bool      `json:"directory,omitempty"`
	Dev       uint64    `json:"dev"`
	Inode     uint64    `json:"inode"`
	Size      int64     `json:"size,omitempty"`
	MTime     time.Time `json:"mtime,omitzero"`
}

// tell tells of a file that gets a name.
func (p *putBack) tell(t *target, f *os.File, meta metadata) error {
	if p.Making == nil {
		return nil
	}
	st, err := statOf(f)
	if err != nil {
		return err
	}
	return p.Making(Made{Path: t.path, Dev: uint64(st.Dev), Inode: st.Ino, Size: meta.Size, MTime: mtime(meta)})
}

// MakeDirectory makes a directory, and tells making of it as [PutBack] does. It follows no symbolic
// link. The directory that is to hold it must be there, and itself must not.
func MakeDirectory(path string, mode, uid, gid uint32, making func(Made) error) error {
	if err := name(path).checkAbsolute(); err != nil {
		return err
	}
	if err := makeDirectory(name(path), mode, uid, gid, making); err != nil {
		return fmt.Errorf("make the directory %v: %w", name(path), err)
	}
	return nil
}

func makeDirectory(path name, mode, uid, gid uint32, making func(Made) error) error {
	folder, base := path.split()
	dir, err := openDirectory(folder)
	if err != nil {
		return err
	}
	defer dir.Close()
	at, partial := int(dir.Fd()), asidePrefix(base)+partialSuffix
	if err := unix.Unlinkat(at, partial, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %v: %w", name(partial), err)
	}
	if err := unix.Mkdirat(at, partial, 0o700); err != nil {
		return err
	}
	fd, err := unix.Openat(at, partial, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	made := os.NewFile(uintptr(fd), filepath.Join(folder, partial))
	defer made.Close()
	st, err := checkNew(made)
	if err == nil {
		err = making(Made{Path: path, Directory: true, Dev: uint64(st.Dev), Inode: st.Ino})
	}
	// The owner first, as another owner takes away special permissions.
	if err == nil {
		err = made.Chown(int(uid), int(gid))
	}
	if err == nil {
		err = unix.Fchmod(fd, mode)
	}
	if err == nil {
		err = unix.Renameat2(at, partial, at, base, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EINVAL) { // NFS, for one, does not know this
			err = unix.Renameat(at, partial, at, base)
		}
	}
	return err
}

// checkNew refuses a directory that is not as it was just made: whoever may write to the one that
// holds it may have put another there, to get that as his own.
func checkNew(dir *os.File) (unix.Stat_t, error) {
	st, err := statOf(dir)
	if err != nil {
		return st, err
	}
	if st.Uid != uint32(os.Geteuid()) || st.Mode&0o777 != 0o700 {
		return st, errors.New("another directory was put in its place")
	}
	if names, err := dir.Readdirnames(1); !errors.Is(err, io.EOF) {
		return st, errors.Join(fmt.Errorf("it holds %v already", names), err)
	}
	return st, nil
}

// Unmake removes what was made, under its name or half made, unless another is there by now or
// somebody has written to it. A directory is removed only if it is empty. It follows no symbolic link.
func Unmake(m Made) error {
	if err := m.Path.checkAbsolute(); err != nil {
		return err
	}
	folder, base := m.Path.split()
	dir, err := openPath(folder, unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %v: %w", m.Path, err)
	}
	defer dir.Close()
	at, partial := int(dir.Fd()), asidePrefix(base)+partialSuffix
	for _, base := range []string{partial, base} {
		var st unix.Stat_t
		err := unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && (base == partial && m.is(st) || m.isUnchanged(st)) {
			flags := 0
			if m.Directory {
				flags = unix.AT_REMOVEDIR
			}
			err = unix.Unlinkat(at, base, flags)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTEMPTY) {
			return fmt.Errorf("remove %v: %w", m.Path, err)
		}
	}
	return nil
}

func (m Made) is(st unix.Stat_t) bool {
	if m.Directory != (st.Mode&unix.S_IFMT == unix.S_IFDIR) || !m.Directory && !isRegular(st) {
		return false
	}
	return inodeOf(st) == inode{m.Dev, m.Inode}
}

// isUnchanged is for files only: a directory's time changes with what is in it. Some file systems
// store times in steps of two seconds.
func (m Made) isUnchanged(st unix.Stat_t) bool {
	return m.is(st) && (m.Directory || st.Size == m.Size && time.Unix(st.Mtim.Unix()).Sub(m.MTime).Abs() <= 2*time.Second)
}
