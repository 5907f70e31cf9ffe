package hooks

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
)

// footprint is what /proc shows a process to hold of the NVIDIA driver.
type footprint struct {
	libcuda bool     // a libcuda is mapped: only then can it be a CUDA process
	devices []string // open or mapped device files
}

var (
	libcudaFile  = regexp.MustCompile(`/libcuda[^/]*\.so[^/]*$`)
	nvidiaDevice = regexp.MustCompile(`/dev/nvidia[^/]*(/[^/]+)?$`)
)

// footprintOf reads a process's mappings and descriptors. It does not need the
// process to run.
func footprintOf(pid int) (footprint, error) {
	var f footprint
	devices := make(map[string]bool)
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return f, goneOr(pid, err)
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		line := lines.Text()
		start := strings.IndexByte(line, '/')
		if start < 0 {
			continue
		}
		path := strings.TrimSuffix(line[start:], " (deleted)")
		f.libcuda = f.libcuda || libcudaFile.MatchString(path)
		if nvidiaDevice.MatchString(path) {
			devices[path] = true
		}
	}
	if err := lines.Err(); err != nil {
		return f, goneOr(pid, err)
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return f, goneOr(pid, err)
	}
	for _, entry := range entries {
		path, err := os.Readlink(filepath.Join(dir, entry.Name()))
		if err == nil && nvidiaDevice.MatchString(path) {
			devices[path] = true
		}
	}
	for device := range devices {
		f.devices = append(f.devices, device)
	}
	slices.Sort(f.devices)
	return f, nil
}

// goneOr turns the errors that /proc gives for an ended process into
// [criuutil.ErrGone].
func goneOr(pid int, err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", pid, criuutil.ErrGone)
	}
	return fmt.Errorf("process %d: %w", pid, err)
}
