package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// sandbox is the file system of a trial restore. Each mount is seen through an overlay, so that names,
// locks, FIFOs and sockets are not those of the dumped job, and what is written goes away with the
// sandbox.
type sandbox struct {
	upper  int // descriptor of the directory in memory
	locked bool
	// bare are mount points that cannot be overlaid, and why. Nothing is there.
	bare map[string]error
}

// seenReadOnly are file systems that hold no files of a job. /proc and the terminals are made anew.
var seenReadOnly = []string{"proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "bpf", "configfs", "pstore", "efivarfs", "binfmt_misc", "autofs", "nsfs", "fusectl", "rpc_pipefs"}

// enterSandbox changes the root directory, in a mount namespace that was made for it. base is an empty
// directory, and size how much may be written, in bytes. locked says that the image has locks on files,
// which single files that are mounted would share with the job.
func enterSandbox(base string, size int64, locked bool) (*sandbox, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("detach the mounts: %w", err)
	}
	mounts, err := procfs.GetMounts()
	if err != nil {
		return nil, err
	}
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &readOnly); err != nil {
		return nil, fmt.Errorf("make the mounts read-only: %w", err)
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var points []string // parents first
	types := make(map[string]string)
	below := make(map[string]int) // what is mounted there now
	for _, m := range mounts {
		at := unescape.Replace(m.MountPoint)
		fd, err := unix.Open(at, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // something is mounted above it
		}
		if before, is := below[at]; is {
			unix.Close(before)
		} else {
			points = append(points, at)
		}
		types[at], below[at] = m.FSType, fd
	}
	defer func() {
		for _, fd := range below {
			unix.Close(fd)
		}
	}()
	slices.Sort(points)
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, fmt.Sprintf("mode=0700,size=%d", size)); err != nil {
		return nil, fmt.Errorf("memory for what is written: %w", err)
	}
	s := &sandbox{locked: locked, bare: make(map[string]error)}
	if s.upper, err = unix.Open(base, unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
		return nil, err
	}
	root := filepath.Join(base, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return nil, err
	}
	for n, at := range points {
		err := s.mount(n, below[at], at, types[at], root)
		if err == nil {
			continue
		}
		if at == "/" || at == "/proc" {
			return nil, fmt.Errorf("overlay of %s: %w", at, err)
		}
		s.bare[at] = err
		if err := unix.Mount("tmpfs", filepath.Join(root, at), "tmpfs", unix.MS_RDONLY, "size=4k"); err != nil && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("hide %s: %w", at, err)
		}
	}
	if err := os.Chdir(root); err != nil {
		return nil, err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return nil, fmt.Errorf("change the root directory: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return nil, fmt.Errorf("leave the old root directory: %w", err)
	}
	return s, os.Chdir("/")
}

// mount shows in the new root what is mounted below. n makes names that no other mount has.
func (s *sandbox) mount(n, below int, point, kind, root string) error {
	at := filepath.Join(root, point)
	var stat unix.Stat_t
	if err := unix.Fstat(below, &stat); err != nil {
		return err
	}
	from := fmt.Sprintf("/proc/self/fd/%d", below)
	isDir, isFile := stat.Mode&unix.S_IFMT == unix.S_IFDIR, stat.Mode&unix.S_IFMT == unix.S_IFREG || stat.Mode&unix.S_IFMT == unix.S_IFCHR
	switch {
	case point == "/proc":
		return unix.Mount("proc", at, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	case kind == "devpts" && isDir:
		return unix.Mount("devpts", at, "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
	case kind == "mqueue":
		return unix.Mount("mqueue", at, "mqueue", 0, "")
	case kind == "hugetlbfs" || !isDir && !isFile || s.locked && stat.Mode&unix.S_IFMT == unix.S_IFREG:
		return errors.New("its files would be shared with the job")
	case isFile || slices.Contains(seenReadOnly, kind):
		return unix.Mount(from, at, "", unix.MS_BIND, "")
	}
	upper, work := fmt.Sprintf("/proc/self/fd/%d/upper%d", s.upper, n), fmt.Sprintf("/proc/self/fd/%d/work%d", s.upper, n)
	for _, dir := range []string{upper, work} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	// What the overlay shows of its topmost directory is the upper one.
	err := errors.Join(unix.Chown(upper, int(stat.Uid), int(stat.Gid)), unix.Chmod(upper, stat.Mode&0o7777))
	if err != nil {
		return err
	}
	return unix.Mount("overlay", at, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,xino=off", from, upper, work))
}

// covers fails if one of the paths is where nothing can be seen.
func (s *sandbox) covers(paths []string) error {
	for _, path := range paths {
		for at, err := range s.bare {
			if path == at || strings.HasPrefix(path, at+"/") {
				return fmt.Errorf("%s is on a file system that cannot be overlaid (%s): %w", path, at, err)
			}
		}
	}
	return nil
}
