package conformance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
)

// What a target sees of the GPUs. It is started in a mount namespace of its own, with a
// tmpfs over the dev of the driver root, in which the wanted nodes are created. Later the
// tests create and remove nodes from outside, through /proc/PID/root. Both drivers look at
// the same thing: the device nodes in the target's namespace.

// gpuMajor is the device major of /dev/nvidiaN.
const gpuMajor = 195

var gpuNode = regexp.MustCompile(`^nvidia[0-9]+$`)

// enterView is what a target does before it executes its program: in a new mount namespace,
// it replaces dev by a copy with only the GPU nodes of these minors.
func enterView(dev string, minors []int) error {
	runtime.LockOSThread() // the namespace belongs to this thread, until exec makes it the one of the process
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare the mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	before, err := unix.Open(dev, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", dev, err)
	}
	var top unix.Stat_t
	if err := unix.Fstat(before, &top); err != nil {
		return err
	}
	if err := copyNodes(fmt.Sprintf("/proc/self/fd/%d", before), dev, top.Dev, minors); err != nil {
		return err
	}
	// The real driver creates missing nodes by itself if it may.
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_MKNOD, 0, 0, 0); err != nil {
		return fmt.Errorf("drop CAP_MKNOD: %w", err)
	}
	return nil
}

// copyNodes copies device nodes, links and folders. It mounts what is mounted there (shm,
// pts), too.
func copyNodes(from, to string, device uint64, minors []int) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		source, target := filepath.Join(from, entry.Name()), filepath.Join(to, entry.Name())
		var st unix.Stat_t
		if err := unix.Lstat(source, &st); err != nil {
			return fmt.Errorf("%s: %w", source, err)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFCHR, unix.S_IFBLK:
			if isGPU(entry.Name(), &st) && !slices.Contains(minors, int(unix.Minor(st.Rdev))) {
				continue
			}
			if err := makeNode(target, st.Mode, int(st.Rdev)); err != nil {
				return err
			}
		case unix.S_IFLNK:
			link, err := os.Readlink(source)
			if err == nil {
				err = os.Symlink(link, target)
			}
			if err != nil {
				return err
			}
		case unix.S_IFDIR:
			if err := os.Mkdir(target, 0o755); err != nil {
				return err
			}
			if st.Dev != device {
				if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
					return fmt.Errorf("bind %s: %w", target, err)
				}
				continue
			}
			if err := copyNodes(source, target, device, minors); err != nil {
				return err
			}
		}
	}
	return nil
}

func isGPU(name string, st *unix.Stat_t) bool {
	return gpuNode.MatchString(name) && st.Mode&unix.S_IFMT == unix.S_IFCHR && unix.Major(st.Rdev) == gpuMajor
}

// makeNode creates a node with exactly this mode, whatever the umask.
func makeNode(path string, mode uint32, device int) error {
	err := unix.Mknod(path, mode, device)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("make the device node %s: %w: needs root with CAP_MKNOD, and a device cgroup that allows it", path, err)
	}
	if err == nil {
		err = unix.Chmod(path, mode&0o7777)
	}
	if err != nil {
		return fmt.Errorf("make the device node %s: %w", path, err)
	}
	return nil
}

// showOnly changes which of the GPUs a running target sees.
func showOnly(pid int, root string, all, wanted []cudackpt.GPU) error {
	dev := filepath.Join("/proc", strconv.Itoa(pid), "root", root, "dev")
	for _, gpu := range all {
		path := filepath.Join(dev, "nvidia"+strconv.Itoa(gpu.Minor))
		visible := slices.Contains(wanted, gpu)
		_, err := os.Lstat(path)
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		case visible && err != nil:
			if err := makeNode(path, unix.S_IFCHR|0o666, int(unix.Mkdev(gpuMajor, uint32(gpu.Minor)))); err != nil {
				return err
			}
		case !visible && err == nil:
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// minorsText returns a list of minors for a command line.
func minorsText(gpus []cudackpt.GPU) string {
	var texts []string
	for _, gpu := range gpus {
		texts = append(texts, strconv.Itoa(gpu.Minor))
	}
	return strings.Join(texts, ",")
}

func parseMinors(text string) ([]int, error) {
	var minors []int
	for word := range strings.SplitSeq(text, ",") {
		minor, err := strconv.Atoi(word)
		if err != nil {
			return nil, err
		}
		minors = append(minors, minor)
	}
	return minors, nil
}
