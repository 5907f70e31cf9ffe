package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// Hierarchies are the mounted control group hierarchies. A host may have thousands of
// mounts, so they are read once for many processes.
type Hierarchies struct {
	system System
	proc   procfs.FS
	mounts []*procfs.MountInfo // only those of control groups
}

// ReadHierarchies reads which control group hierarchies are mounted on this host.
func ReadHierarchies() (*Hierarchies, error) { return System{}.Hierarchies() }

// Hierarchies reads which control group hierarchies are mounted.
func (s System) Hierarchies() (*Hierarchies, error) {
	proc, err := procfs.NewFS(s.path("proc"))
	if err != nil {
		return nil, err
	}
	mounts, err := proc.GetMounts()
	if err != nil {
		return nil, fmt.Errorf("find the mounted control groups: %w", err)
	}
	mounts = slices.DeleteFunc(mounts, func(m *procfs.MountInfo) bool { return m.FSType != "cgroup" && m.FSType != "cgroup2" })
	return &Hierarchies{system: s, proc: proc, mounts: mounts}, nil
}

// each calls do for those control groups of a process that could have the controller, from
// the innermost up to the root of the mount. Hierarchies of v1 and v2 may be mounted side
// by side; a controller belongs to only one of them.
func (h *Hierarchies) each(pid int, controller string, do func(dir string, v1, root bool) error) error {
	proc, err := h.proc.Proc(pid)
	if err != nil {
		return GoneOr(pid, err)
	}
	groups, err := proc.Cgroups()
	if err != nil {
		return GoneOr(pid, err)
	}
	for _, group := range groups {
		v2 := group.HierarchyID == 0
		if !v2 && !slices.Contains(group.Controllers, controller) {
			continue
		}
		for _, mount := range h.mounts {
			_, hasController := mount.SuperOptions[controller]
			if v2 && mount.FSType != "cgroup2" || !v2 && (mount.FSType != "cgroup" || !hasController) {
				continue
			}
			path, err := filepath.Rel(mount.Root, group.Path)
			if err != nil || strings.HasPrefix(path, "..") {
				continue
			}
			for ; ; path = filepath.Dir(path) {
				if err := do(h.system.path(mount.MountPoint, path), !v2, path == "."); err != nil {
					return err
				}
				if path == "." {
					break
				}
			}
			break
		}
	}
	return nil
}

// ControlGroups are the control groups of a process, in all hierarchies, as the kernel names them.
func ControlGroups(pid int) (string, error) {
	text, err := ReadText(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", GoneOr(pid, err)
	}
	return string(text), nil
}

// Freezer is a control group that can freeze its processes.
type Freezer struct {
	Dir string `json:"dir"`
	// V1 says that the group belongs to the cgroup v1 freezer controller, whose frozen
	// tasks answer no ptrace request. Otherwise the group belongs to cgroup v2.
	V1 bool `json:"v1"`
}

// FreezersOf returns the freezers that a process is in, innermost first. It leaves out the
// roots of the hierarchies, which cannot freeze.
func (h *Hierarchies) FreezersOf(pid int) ([]Freezer, error) {
	var freezers []Freezer
	err := h.each(pid, "freezer", func(dir string, v1, root bool) error {
		f := Freezer{Dir: dir, V1: v1}
		if _, err := os.Stat(f.control()); err == nil && !root {
			freezers = append(freezers, f)
		}
		return nil
	})
	return freezers, err
}

// Frozen reports whether this group itself, and not one above it, was told to freeze.
func (f Freezer) Frozen() (bool, error) {
	file := "cgroup.freeze"
	if f.V1 {
		file = "freezer.self_freezing"
	}
	data, err := os.ReadFile(filepath.Join(f.Dir, file))
	return strings.TrimSpace(string(data)) == "1", err
}

// Freeze freezes the group and waits until all its tasks are frozen.
func (f Freezer) Freeze(ctx context.Context) error { return f.set(ctx, true) }

// Thaw thaws the group and waits until its tasks can run.
func (f Freezer) Thaw(ctx context.Context) error { return f.set(ctx, false) }

func (f Freezer) set(ctx context.Context, freeze bool) error {
	order, settled, event := "0", "frozen 0", filepath.Join(f.Dir, "cgroup.events")
	switch {
	case f.V1 && freeze:
		order, settled, event = "FROZEN", "FROZEN", f.control()
	case f.V1:
		order, settled, event = "THAWED", "THAWED", f.control()
	case freeze:
		order, settled = "1", "frozen 1"
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		// A v1 group that is not yet frozen must be told again.
		if err := os.WriteFile(f.control(), []byte(order), 0); err != nil {
			return fmt.Errorf("set the freezer: %w", err)
		}
		data, err := os.ReadFile(event)
		if err != nil {
			return fmt.Errorf("read the freezer: %w", err)
		}
		if strings.Contains(string(data), settled) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("freezer %s does not become %q: %w", f.Dir, settled, ctx.Err())
		case <-time.After(pause):
		}
	}
}

func (f Freezer) control() string {
	if f.V1 {
		return filepath.Join(f.Dir, "freezer.state")
	}
	return filepath.Join(f.Dir, "cgroup.freeze")
}

// FrozenBy returns the freezers that currently keep a process from running. To ask about many
// processes, read the [Hierarchies] once.
func FrozenBy(pid int) ([]Freezer, error) {
	hierarchies, err := ReadHierarchies()
	if err != nil {
		return nil, err
	}
	return hierarchies.FrozenBy(pid)
}

// FrozenBy returns the freezers that currently keep a process from running.
func (h *Hierarchies) FrozenBy(pid int) ([]Freezer, error) {
	freezers, err := h.FreezersOf(pid)
	if err != nil {
		return nil, err
	}
	return FrozenOf(freezers)
}

// FrozenTree returns the freezers that keep a part of a tree from running.
func FrozenTree(root int) ([]Freezer, error) {
	pids, err := Tree(root)
	if err != nil {
		return nil, err
	}
	return Frozen(pids)
}

// Frozen returns the control groups that have frozen one of these processes.
func Frozen(pids []int) ([]Freezer, error) {
	hierarchies, err := ReadHierarchies()
	if err != nil {
		return nil, err
	}
	var all []Freezer
	for _, pid := range pids {
		freezers, err := hierarchies.FrozenBy(pid)
		if err != nil && !errors.Is(err, ErrGone) {
			return nil, err
		}
		for _, freezer := range freezers {
			if !slices.Contains(all, freezer) {
				all = append(all, freezer)
			}
		}
	}
	return all, nil
}

// FrozenOf returns those freezers that are frozen. One that does not exist any more is not.
func FrozenOf(freezers []Freezer) ([]Freezer, error) {
	var frozen []Freezer
	var errs []error
	for _, f := range freezers {
		isFrozen, err := f.Frozen()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
		if isFrozen {
			frozen = append(frozen, f)
		}
	}
	return frozen, errors.Join(errs...)
}

// MemoryGroup is a control group that limits the memory of its processes.
type MemoryGroup struct {
	Dir   string
	V1    bool   // it belongs to the cgroup v1 memory controller, else to cgroup v2
	Limit uint64 // bytes
	Usage uint64 // bytes, including the groups below it
	// Reclaimable is how many bytes of the usage the kernel gives up when memory is short: file cache, and what it
	// keeps of file systems, which v1 does not tell from the kernel's other memory.
	Reclaimable uint64
}

// ID identifies the group in every mount and namespace. It is 0 if the group is gone.
func (g MemoryGroup) ID() uint64 {
	info, err := os.Stat(g.Dir)
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Ino
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
	usageFile, cache := "memory.current", []string{"active_file", "inactive_file", "slab_reclaimable"}
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
	if kernel, err := readNumber(filepath.Join(dir, "memory.kmem.usage_in_bytes")); v1 && err == nil {
		g.Reclaimable += uint64(kernel)
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
