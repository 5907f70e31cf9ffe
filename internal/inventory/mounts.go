package inventory

import (
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
)

// Mount is a mount in a mount namespace.
type Mount struct {
	ID     string // as fdinfo and statx(2) have it
	Device uint64
	At     string // as the processes of the namespace know it
	Kind   string // of the file system
}

// Mounts returns the mounts in the namespace of the root; none if it has ended.
func (t *Tree) Mounts() []Mount {
	mounts, _ := t.mounts.get(func() ([]Mount, error) {
		if len(t.Processes) == 0 {
			return nil, nil
		}
		reader := "self" // the root may not see all of them (chroot)
		if root := t.Processes[0]; !root.InOurs("mnt") {
			reader = fmt.Sprint(root.PID)
		}
		text, err := proc.ReadText("/proc/" + reader + "/mountinfo")
		return parseMounts(string(text)), err
	})
	return mounts
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
		m.Kind, _, _ = strings.Cut(after, " ")
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
