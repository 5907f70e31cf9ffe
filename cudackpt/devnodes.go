package cudackpt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/drivers"
)

// nvidiaMajor is the major number of the GPUs' character devices, which the kernel reserves for
// them. Minors 254 and 255 are nvidia-modeset and nvidiactl.
const (
	nvidiaMajor  = 195
	lastGPUMinor = 253
)

// visibleMinors returns the minors of the GPU device nodes in <base>/dev of the file system
// tree whose root is processRoot, "/proc/PID/root". The device number of a node counts, not its
// name, because the number decides which device is opened.
func visibleMinors(processRoot, base string) (map[int]bool, error) {
	tree, err := unix.Open(processRoot, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: processRoot, Err: err}
	}
	defer unix.Close(tree)
	dev := filepath.Join(base, "dev")
	dir, err := openIn(tree, dev, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the process has no /dev, so it sees no GPU
	}
	if err != nil {
		return nil, fmt.Errorf("in %s: %w", processRoot, err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("in %s: %w", processRoot, err)
	}
	minors := make(map[int]bool)
	for _, name := range names {
		if !drivers.GPUNode.MatchString(name) {
			continue
		}
		node, err := openIn(tree, filepath.Join(dev, name), unix.O_PATH)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed in the meantime, or a dangling link
		}
		if err != nil {
			return nil, fmt.Errorf("in %s: %w", processRoot, err)
		}
		var st unix.Stat_t
		err = unix.Fstat(int(node.Fd()), &st)
		node.Close()
		if err != nil {
			return nil, &fs.PathError{Op: "fstat", Path: filepath.Join(processRoot, dev, name), Err: err}
		}
		device := st.Rdev
		if st.Mode&unix.S_IFMT == unix.S_IFCHR && unix.Major(device) == nvidiaMajor && unix.Minor(device) <= lastGPUMinor {
			minors[int(unix.Minor(device))] = true
		}
	}
	return minors, nil
}

// openIn opens path in the tree whose root is tree. It resolves absolute links as a process
// with that root does. A plain open of /proc/PID/root/… would resolve them in our own tree.
func openIn(tree int, path string, flags uint64) (*os.File, error) {
	how := &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	for {
		fd, err := unix.Openat2(tree, path, how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // EAGAIN: a rename came during the look-up
			continue
		}
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
}
