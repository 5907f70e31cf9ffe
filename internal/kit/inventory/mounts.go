package inventory

import (
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// Mount is a mount in a mount namespace.
type Mount struct {
	ID     string // as fdinfo and statx(2) have it
	Device uint64
	At     string // as the processes of the namespace know it
	Kind   string // of the file system
	Source string // what is mounted, as its kind names it
}

// Mounts returns the mounts in the namespace of the root; none if it has ended.
func (t *Tree) Mounts() []Mount {
	if len(t.Processes) == 0 {
		return nil
	}
	return t.MountsOf(t.Processes[0])
}

// MountsOf returns the mounts in the namespace of a process of the tree, which are read once for all in it.
func (t *Tree) MountsOf(p *Process) []Mount {
	namespace := p.Namespace("mnt")
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if mounts, known := t.mounts[namespace]; known {
		return mounts
	}
	mounts := OwnMounts
	if !p.InOurs("mnt") { // else the process may not see all of them (chroot)
		mounts = func() ([]Mount, error) { return mountsSeenBy(fmt.Sprint(p.PID)) }
	}
	found, err := mounts()
	if err == nil && len(found) > 0 {
		t.mounts[namespace] = found
	}
	return found
}

// OwnMounts returns the mounts that this program sees.
func OwnMounts() ([]Mount, error) { return mountsSeenBy("self") }

func mountsSeenBy(process string) ([]Mount, error) {
	text, err := proc.ReadText("/proc/" + process + "/mountinfo")
	return parseMounts(string(text)), err
}

// MountRoot is a path by which this program reaches the root of the mount namespace of the tree's root.
func (t *Tree) MountRoot() string {
	if root := t.Processes[0]; !root.InOurs("mnt") {
		return fmt.Sprintf("/proc/%d/root", root.PID)
	}
	return "/"
}

// HasMount reports whether the namespace of the root has a mount, or none that could be seen. It is true if that is
// not known.
func (t *Tree) HasMount(id string) bool {
	known, _ := t.mountIDs.get(func() (map[string]bool, error) {
		ids := make(map[string]bool)
		for _, m := range t.Mounts() {
			ids[m.ID] = true
		}
		return ids, nil
	})
	return len(known) == 0 || known[id] || id == "" || id == memoryMount()
}

var unescapeMount = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// parseMounts parses mountinfo: ID PARENT MAJOR:MINOR ROOT POINT OPTIONS OPTIONAL… - KIND SOURCE OPTIONS.
func parseMounts(text string) (mounts []Mount) {
	for line := range strings.Lines(text) {
		fields, after, _ := strings.Cut(line, " - ")
		m := Mount{}
		if of := strings.Fields(after); len(of) > 1 {
			m.Kind, m.Source = of[0], of[1]
		}
		var major, minor uint32
		parts := strings.Fields(fields)
		if len(parts) < 5 {
			continue
		}
		if _, err := fmt.Sscanf(parts[2], "%d:%d", &major, &minor); err == nil {
			m.Device = unix.Mkdev(major, minor)
		}
		m.ID, m.At = parts[0], unescapeMount.Replace(parts[4])
		mounts = append(mounts, m)
	}
	return mounts
}

// memoryMount is the mount of shared memory without a name (memfd, SysV). No namespace shows it.
var memoryMount = sync.OnceValue(func() string {
	fd, err := unix.MemfdCreate("cucriu", unix.MFD_CLOEXEC)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var stat unix.Statx_t
	_ = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &stat)
	return mountOf(&stat)
})
