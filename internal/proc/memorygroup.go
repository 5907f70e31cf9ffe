package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// MemoryGroup is a control group that limits the memory of its processes.
type MemoryGroup struct {
	Dir   string
	V1    bool   // it belongs to the cgroup v1 memory controller, else to cgroup v2
	Limit uint64 // bytes
	Usage uint64 // bytes, including the groups below it
	// Reclaimable is how many bytes of the usage are file cache, which the kernel gives up
	// when memory is short.
	Reclaimable uint64
}

// Room returns how many more bytes its processes can use.
func (g MemoryGroup) Room() uint64 {
	used := g.Usage - min(g.Usage, g.Reclaimable)
	return g.Limit - min(g.Limit, used)
}

// LimitFile returns the name of the file in Dir that holds the limit.
func (g MemoryGroup) LimitFile() string {
	if g.V1 {
		return "memory.limit_in_bytes"
	}
	return "memory.max"
}

// unlimited, in bytes, is more than any machine has. A v1 group without a limit shows the
// largest multiple of the page size that fits into 63 bits.
const unlimited = 1 << 62

// MemoryGroups returns the control groups that limit the memory of a process, innermost
// first. To ask about many processes, read the [Hierarchies] once.
func (s System) MemoryGroups(pid int) ([]MemoryGroup, error) {
	hierarchies, err := s.Hierarchies()
	if err != nil {
		return nil, err
	}
	return hierarchies.MemoryGroups(pid)
}

// MemoryGroups returns the control groups that limit the memory of a process, innermost
// first.
func (h *Hierarchies) MemoryGroups(pid int) ([]MemoryGroup, error) {
	var limits []MemoryGroup
	// The root of a mount counts too: in a cgroup namespace it may have a limit.
	err := h.each(pid, "memory", func(dir string, v1, _ bool) error {
		limit, err := readMemoryGroup(dir, v1)
		if err == nil && limit.Limit < unlimited {
			limits = append(limits, limit)
		}
		return err
	})
	return limits, err
}

// OOMCounter counts the processes of a control group that the out-of-memory killer ends.
type OOMCounter struct {
	Dir    string // of the group
	file   string
	before uint64
}

// CountOOMKills begins to count in the innermost memory control group of a process. It returns nil
// where the kernel does not count.
func (h *Hierarchies) CountOOMKills(pid int) (counter *OOMCounter, err error) {
	err = h.each(pid, "memory", func(dir string, v1, _ bool) error {
		if counter != nil {
			return nil
		}
		c := &OOMCounter{Dir: dir, file: filepath.Join(dir, "memory.events")}
		if v1 {
			c.file = filepath.Join(dir, "memory.oom_control")
		}
		if c.before, err = c.read(); err == nil {
			counter = c
		}
		return nil
	})
	return counter, err
}

// Kills returns how many there were since.
func (c *OOMCounter) Kills() uint64 {
	now, _ := c.read() // the group may be gone
	return now - min(now, c.before)
}

func (c *OOMCounter) read() (uint64, error) {
	data, err := os.ReadFile(c.file)
	for line := range strings.Lines(string(data)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == "oom_kill" {
			return strconv.ParseUint(value, 10, 64)
		}
	}
	return 0, errors.Join(err, errors.ErrUnsupported)
}

// readMemoryGroup reads one group. A group without the controller, such as the root of v2,
// has no limit.
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
