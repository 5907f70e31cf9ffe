package proc

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

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
