package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	counters, err := readCounters(c.file)
	count, has := counters["oom_kill"]
	if err == nil && !has {
		err = errors.ErrUnsupported
	}
	return count, err
}

// readMemoryGroup reads one group. A group without the controller, such as the root of v2,
// has no limit.
func readMemoryGroup(dir string, v1 bool) (MemoryGroup, error) {
	g := MemoryGroup{Dir: dir, V1: v1, Limit: unlimited}
	limit, err := readNumber(filepath.Join(dir, g.LimitFile()))
	if errors.Is(err, os.ErrNotExist) || limit >= unlimited {
		return g, nil
	}
	usageFile, cache := "memory.current", []string{"active_file", "inactive_file"}
	if v1 {
		usageFile, cache = "memory.usage_in_bytes", []string{"total_active_file", "total_inactive_file"}
	}
	usage, usageErr := readNumber(filepath.Join(dir, usageFile))
	counters, statErr := readCounters(filepath.Join(dir, "memory.stat"))
	if err := errors.Join(err, usageErr, statErr); err != nil {
		return g, fmt.Errorf("memory control group %s: %w", dir, err)
	}
	g.Limit, g.Usage = uint64(limit), uint64(usage)
	for _, name := range cache {
		g.Reclaimable += counters[name]
	}
	return g, nil
}

// readCounters reads a file whose lines are a name and a number.
func readCounters(path string) (map[string]uint64, error) {
	data, err := os.ReadFile(path)
	counters := make(map[string]uint64)
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if counters[name], err = strconv.ParseUint(value, 10, 64); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, name, err)
		}
	}
	return counters, err
}
