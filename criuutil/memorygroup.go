package criuutil

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// MemoryGroup is a control group that limits the memory of its processes.
type MemoryGroup struct {
	Dir   string
	V1    bool   // of the cgroup v1 memory controller; else of cgroup v2
	Limit uint64 // bytes
	Usage uint64 // bytes, of the groups below it too
	// Reclaimable is how much of the usage is file cache, which gives way: bytes.
	Reclaimable uint64
}

// Room is how many bytes more its processes can have.
func (g MemoryGroup) Room() uint64 {
	used := g.Usage - min(g.Usage, g.Reclaimable)
	return g.Limit - min(g.Limit, used)
}

// LimitFile is the name of the file in Dir that holds the limit.
func (g MemoryGroup) LimitFile() string {
	if g.V1 {
		return "memory.limit_in_bytes"
	}
	return "memory.max"
}

// unlimited is more than any machine has. A v1 group without a limit shows the
// largest number of pages that fits 63 bits.
const unlimited = 1 << 62

// MemoryGroups returns the control groups that limit the memory of a process,
// the innermost first. Hierarchies of v1 and v2 may be mounted side by side;
// the memory controller is in one of them.
func (s System) MemoryGroups(pid int) ([]MemoryGroup, error) {
	fs, err := procfs.NewFS(s.path("proc"))
	if err != nil {
		return nil, err
	}
	proc, err := fs.Proc(pid)
	if err != nil {
		return nil, goneOr(pid, err)
	}
	groups, err := proc.Cgroups()
	if err != nil {
		return nil, goneOr(pid, err)
	}
	mounts, err := fs.GetMounts()
	if err != nil {
		return nil, fmt.Errorf("find the mounted control groups: %w", err)
	}
	var limits []MemoryGroup
	for _, group := range groups {
		v2 := group.HierarchyID == 0
		if !v2 && !slices.Contains(group.Controllers, "memory") {
			continue
		}
		for _, mount := range mounts {
			_, isMemory := mount.SuperOptions["memory"]
			if v2 && mount.FSType != "cgroup2" || !v2 && (mount.FSType != "cgroup" || !isMemory) {
				continue
			}
			path, err := filepath.Rel(mount.Root, group.Path)
			if err != nil || strings.HasPrefix(path, "..") {
				continue
			}
			// The root of the mount too: in a cgroup namespace it may be limited.
			for ; ; path = filepath.Dir(path) {
				limit, err := readMemoryGroup(s.path(mount.MountPoint, path), !v2)
				if err != nil {
					return nil, err
				}
				if limit.Limit < unlimited {
					limits = append(limits, limit)
				}
				if path == "." {
					break
				}
			}
			break
		}
	}
	return limits, nil
}

// readMemoryGroup reads one group. One without the controller, such as the root
// of v2, has no limit.
func readMemoryGroup(dir string, v1 bool) (MemoryGroup, error) {
	g := MemoryGroup{Dir: dir, V1: v1, Limit: unlimited}
	limit, err := os.ReadFile(filepath.Join(dir, g.LimitFile()))
	if errors.Is(err, os.ErrNotExist) || strings.TrimSpace(string(limit)) == "max" {
		return g, nil
	}
	usageFile, cache := "memory.current", []string{"active_file", "inactive_file"}
	if v1 {
		usageFile, cache = "memory.usage_in_bytes", []string{"total_active_file", "total_inactive_file"}
	}
	if err == nil {
		g.Limit, err = strconv.ParseUint(strings.TrimSpace(string(limit)), 10, 64)
	}
	var usage, stat []byte
	if err == nil {
		usage, err = os.ReadFile(filepath.Join(dir, usageFile))
	}
	if err == nil {
		g.Usage, err = strconv.ParseUint(strings.TrimSpace(string(usage)), 10, 64)
	}
	if err == nil {
		stat, err = os.ReadFile(filepath.Join(dir, "memory.stat"))
	}
	if err != nil {
		return g, fmt.Errorf("memory control group %s: %w", dir, err)
	}
	for line := range strings.Lines(string(stat)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if slices.Contains(cache, name) {
			bytes, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return g, fmt.Errorf("memory control group %s: %s: %w", dir, name, err)
			}
			g.Reclaimable += bytes
		}
	}
	return g, nil
}
