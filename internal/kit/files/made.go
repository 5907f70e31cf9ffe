package files

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Made is a file that was missing and is made, or a directory. It is known before it has its name,
// so that whoever is killed meanwhile leaves nothing that cannot be found: see [Unmake].
type Made struct {
	Path      name      `json:"path"`
	Directory bool      `json:"directory,omitempty"`
	Dev       uint64    `json:"dev"`
	Inode     uint64    `json:"inode"` // 0 of a directory: any that is empty is taken for it
	Size      int64     `json:"size,omitempty"`
	MTime     time.Time `json:"mtime,omitzero"`
}

// tell tells of a file that gets a name.
func (p *putBack) tell(path name, f *os.File, meta metadata) error {
	if p.Making == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	return p.Making(Made{Path: path, Dev: uint64(st.Dev), Inode: st.Ino, Size: meta.Size, MTime: mtime(meta)})
}

// MakeDirectory makes a directory, and calls making beforehand. It follows no symbolic link. The
// directory that is to hold it must be there, and itself must not.
func MakeDirectory(path string, mode, uid, gid uint32, making func(Made) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("make the directory %v: %w", name(path), err)
		}
	}()
	t, err := openTarget(name(path))
	if err != nil {
		return err
	}
	defer t.Close()
	if t.now != nil {
		return fs.ErrExist
	}
	if err := making(Made{Path: name(path), Directory: true}); err != nil {
		return err
	}
	if err := unix.Mkdirat(int(t.dir.Fd()), t.base, 0o700); err != nil {
		return err
	}
	made, err := openAt(int(t.dir.Fd()), t.base, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer made.Close()
	if err := checkNew(made); err != nil {
		return err
	}
	// The owner first, as another one takes away special permissions.
	return cmp.Or(made.Chown(int(uid), int(gid)), made.Chmod(fileMode(mode)))
}

// checkNew refuses a directory that is not as it was just made: whoever may write to the one that
// holds it may have put another there, to get that as his own.
func checkNew(dir *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	if _, err := dir.Readdirnames(1); st.Uid != uint32(os.Geteuid()) || st.Mode&0o777 != 0o700 || !errors.Is(err, io.EOF) {
		return errors.New("it was replaced by another directory")
	}
	return nil
}

// Unmake removes what was made, under its name or half made, unless another is there by now or
// somebody has written to it. A directory is removed only if it is empty. It follows no symbolic link.
func Unmake(m Made) error {
	t, err := openTarget(m.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %w", err)
	}
	defer t.Close()
	partial := asidePrefix(t.base) + partialSuffix
	for _, base := range []string{partial, t.base} {
		var st unix.Stat_t
		err := unix.Fstatat(int(t.dir.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && (base == partial && m.is(st) || m.isUnchanged(st)) {
			flags := 0
			if m.Directory {
				flags = unix.AT_REMOVEDIR
			}
			err = unix.Unlinkat(int(t.dir.Fd()), base, flags)
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
	return m.Inode == 0 && m.Directory || inodeOf(st) == inode{m.Dev, m.Inode}
}

// isUnchanged is for files only: a directory's time changes with what is in it. Some file systems
// store times in steps of two seconds.
func (m Made) isUnchanged(st unix.Stat_t) bool {
	return m.is(st) && (m.Directory || st.Size == m.Size && time.Unix(st.Mtim.Unix()).Sub(m.MTime).Abs() <= 2*time.Second)
}
