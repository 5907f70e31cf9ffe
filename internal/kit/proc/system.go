package proc

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// System reads what the kernel says about the host in /proc and /sys. The zero value reads
// this host.
type System struct {
	Root string // the directory that holds proc and sys; empty for /
}

func (s System) path(elements ...string) string {
	return filepath.Join("/", s.Root, filepath.Join(elements...))
}

// KernelVersion returns the release of the running kernel, such as "6.18.2-amd64".
func (s System) KernelVersion() (string, error) {
	data, err := os.ReadFile(s.path("proc/sys/kernel/osrelease"))
	return strings.TrimSpace(string(data)), err
}

// AvailableMemory returns the kernel's estimate of how many bytes can be allocated without
// swapping.
func (s System) AvailableMemory() (uint64, error) {
	info, err := s.memory()
	if err != nil {
		return 0, err
	}
	return *info.MemAvailable << 10, nil
}

// MostMemory returns how many bytes can be allocated at most without swapping. That is more than
// [System.AvailableMemory], which leaves out what the kernel tries to keep free, much of the memory where somebody has
// raised vm.watermark_scale_factor, and the cache of ZFS.
func (s System) MostMemory() (uint64, error) {
	info, err := s.memory()
	if err != nil {
		return 0, err
	}
	most := *info.MemAvailable << 10
	reserve, err := readNumber(s.path("proc/sys/vm/min_free_kbytes"))
	if err == nil && info.MemFree != nil && info.ActiveFile != nil && info.InactiveFile != nil && info.SReclaimable != nil {
		all := *info.MemFree + *info.ActiveFile + *info.InactiveFile + *info.SReclaimable
		most = max(most, (all-min(all, uint64(reserve)))<<10)
	}
	return most + s.freeableARC(), nil
}

// freeableARC returns how much ZFS caches that it gives up when memory is short.
func (s System) freeableARC() uint64 {
	data, _ := os.ReadFile(s.path("proc/spl/kstat/zfs/arcstats")) // most hosts have none
	var size, least uint64
	for line := range strings.Lines(string(data)) {
		switch fields := strings.Fields(line); { // name, type and value
		case len(fields) != 3:
		case fields[0] == "size":
			size, _ = strconv.ParseUint(fields[2], 10, 64)
		case fields[0] == "c_min":
			least, _ = strconv.ParseUint(fields[2], 10, 64)
		}
	}
	return size - min(size, least)
}

// FreeSwap returns how many bytes can be swapped out.
func (s System) FreeSwap() (uint64, error) {
	info, err := s.memory()
	if err != nil || info.SwapFree == nil {
		return 0, err
	}
	return *info.SwapFree << 10, nil
}

func (s System) memory() (procfs.Meminfo, error) {
	proc, err := procfs.NewFS(s.path("proc"))
	if err != nil {
		return procfs.Meminfo{}, err
	}
	info, err := proc.Meminfo()
	if err == nil && info.MemAvailable == nil {
		err = errors.New("/proc/meminfo has no MemAvailable")
	}
	return info, err
}

// HugePages returns the mode of transparent huge pages: always, madvise or never. It is
// empty if the kernel has none.
func (s System) HugePages() (string, error) {
	data, err := os.ReadFile(s.path("sys/kernel/mm/transparent_hugepage/enabled"))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	_, rest, _ := strings.Cut(string(data), "[")
	mode, _, _ := strings.Cut(rest, "]")
	return mode, err
}

// Capabilities returns the effective capabilities of this process: bit n is capability n.
func Capabilities() (uint64, error) {
	var data [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), err
}

// BootID identifies this boot of the host. Pids and start times mean nothing after the next one.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

// TaskRoom returns how many more threads the kernel and the control groups of a process allow.
func (s System) TaskRoom(pid int) (int, error) {
	room := math.MaxInt
	narrow := func(limitFile, used string) {
		limit, err := readNumber(limitFile)
		now, usedErr := strconv.Atoi(used)
		if err == nil && usedErr == nil { // else it is no limit
			room = min(room, max(0, limit-now))
		}
	}
	load, err := os.ReadFile(s.path("proc/loadavg")) // such as "0.20 0.18 0.12 1/80 11206"
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(load), "/")
	threads, _, _ := strings.Cut(after, " ")
	narrow(s.path("proc/sys/kernel/pid_max"), threads)
	narrow(s.path("proc/sys/kernel/threads-max"), threads)
	hierarchies, err := s.Hierarchies()
	if err != nil {
		return 0, err
	}
	return room, hierarchies.each(pid, "pids", func(dir string, _, _ bool) error {
		used, _ := os.ReadFile(filepath.Join(dir, "pids.current"))
		narrow(filepath.Join(dir, "pids.max"), strings.TrimSpace(string(used)))
		return nil
	})
}

// readNumber reads a number from a file; the largest one if that says "max".
func readNumber(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(data))
	if text == "max" {
		return math.MaxInt, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}
