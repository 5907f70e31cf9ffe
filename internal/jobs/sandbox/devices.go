package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Hide makes files of a directory disappear in this mount namespace. The directory becomes an own
// file system, in which everything else of it is mounted.
func Hide(dir string, names []string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return slices.Contains(names, e.Name()) }) {
		return nil
	}
	// The new one is put together somewhere else first: below, nothing of the old one is found.
	under, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer under.Close()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755,size=1m"); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	old := fmt.Sprintf("/proc/self/fd/%d", under.Fd())
	for _, entry := range entries {
		if slices.Contains(names, entry.Name()) {
			continue
		}
		err := show(filepath.Join(old, entry.Name()), filepath.Join(dir, entry.Name()), entry)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", filepath.Join(dir, entry.Name()), err)
		}
	}
	return nil
}

// show mounts one file of the old directory in the new one.
func show(from, to string, entry fs.DirEntry) error {
	if entry.Type()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	if made, err := makePTMX(from, to); made || err != nil {
		return err
	}
	var err error
	if entry.IsDir() {
		err = os.Mkdir(to, 0o755)
	} else {
		err = os.WriteFile(to, nil, 0o600)
	}
	if err != nil {
		return err
	}
	return unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "")
}

// makePTMX makes the device of new terminals anew, if from is that: it opens only beside the
// directory pts, and a mount of it is beside nothing.
func makePTMX(from, to string) (made bool, err error) {
	const major, minor = 5, 2
	var stat unix.Stat_t
	if err := unix.Stat(from, &stat); err != nil {
		return false, &fs.PathError{Op: "stat", Path: from, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFCHR || stat.Rdev != unix.Mkdev(major, minor) {
		return false, nil
	}
	if err := unix.Mknod(to, unix.S_IFCHR, int(stat.Rdev)); errors.Is(err, unix.EPERM) {
		return false, nil // without CAP_MKNOD
	} else if err != nil {
		return false, os.NewSyscallError("mknod", err)
	}
	return true, errors.Join(os.Chmod(to, fs.FileMode(stat.Mode&0o777)), os.Chown(to, int(stat.Uid), int(stat.Gid)))
}

// KeepHidden has the driver's libraries make no device nodes by themselves: as root, they make
// those that are missing. params is the driver's file in /proc, and copyTo a new one that takes
// its place. This is how NVIDIA's container toolkit does it.
func KeepHidden(params, copyTo string) error {
	text, err := os.ReadFile(params)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	changed := bytes.ReplaceAll(text, []byte("ModifyDeviceFiles: 1"), []byte("ModifyDeviceFiles: 0"))
	if bytes.Equal(changed, text) {
		return nil
	}
	if err := os.WriteFile(copyTo, changed, 0o444); err != nil {
		return err
	}
	if err := unix.Mount(copyTo, params, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", params, err)
	}
	return nil
}
