package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LockedMemory returns how many bytes of its memory a process has locked against paging.
func LockedMemory(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, GoneOr(pid, err)
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "VmLck:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 54)
			if err != nil {
				return 0, fmt.Errorf("status of process %d: VmLck: %w", pid, err)
			}
			return kib << 10, nil
		}
	}
	return 0, nil // a zombie
}

// CanDropLocked reports whether this kernel knows MADV_DONTNEED_LOCKED, which exists since
// Linux 5.18. Older kernels cannot drop locked memory.
func CanDropLocked() bool {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Munmap(page) }()
	return unix.Madvise(page, unix.MADV_DONTNEED_LOCKED) == nil
}
