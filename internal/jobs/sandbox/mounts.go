package sandbox

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/procfs"

	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/quote"
	"cucriu/internal/kit/records"
)

// mountsKind is of the mounts that the sandbox was made with. Its init writes it.
var mountsKind = records.Kind[[]mount]{Name: "mounts.json"}

// mount is what tells one mount of a namespace from another.
type mount struct {
	ID, Parent                int
	Device, Root, Point, Type string
	Follows                   bool // what is mounted and unmounted on the host
}

// mounts lists those of a process's namespace.
func mounts(pid int) (all []mount, err error) {
	infos, err := procfs.GetProcMounts(pid)
	for _, i := range infos {
		_, follows := i.OptionalFields["master"]
		all = append(all, mount{i.MountID, i.ParentID, i.MajorMinorVer, i.Root, i.MountPoint, i.FSType, follows})
	}
	return all, err
}

// recordMounts notes what is mounted before the job is there.
func recordMounts(dir string) error {
	all, err := mounts(os.Getpid())
	if err != nil {
		return err
	}
	return mountsKind.Write(dir, all)
}

// MountsOfJob lists where the job has mounted or unmounted something in its sandbox. A mount ends with the sandbox, and what is
// in it is in no checkpoint. To be called on the host.
func (s *Sandbox) MountsOfJob() ([]string, error) {
	known, err := mountsKind.Read(s.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // an earlier version has made the sandbox
	}
	if err != nil {
		return nil, err
	}
	pid := s.Init().PID
	before := looksAtHost(os.Getpid(), 1)
	all, err := mounts(pid)
	if err != nil {
		return nil, proc.GoneOr(pid, err)
	}
	// The host may mount and unmount meanwhile.
	return ofJob(known, all, append(before, looksAtHost(os.Getpid(), 1)...)...), nil
}

// looksAtHost lists the mounts that processes of the host see: this program may be in another namespace than the one that the
// sandbox follows, if it has taken over from one that was killed. A process of which the kernel does not tell is left out.
func looksAtHost(pids ...int) (host [][]mount) {
	for _, pid := range pids {
		if all, err := mounts(pid); err == nil {
			host = append(host, all)
		}
	}
	return host
}

// ofJob lists where the job has mounted or unmounted something. The rest of what has changed since the known mounts were all that
// there were has changed on the host, as one of the looks at it shows, or by itself.
func ofJob(known, all []mount, host ...[]mount) (points []string) {
	on := func(m mount) func(look []mount) bool {
		return func(look []mount) bool {
			return slices.ContainsFunc(look, func(h mount) bool { h.ID = m.ID; return h.is(m) })
		}
	}
	for _, m := range unlike(all, known) {
		if !slices.ContainsFunc(host, on(m)) {
			points = append(points, quote.Name(m.Point))
		}
	}
	for _, m := range unlike(known, all) {
		lacks := func(look []mount) bool { return !on(m)(look) }
		if !m.Follows || !slices.ContainsFunc(host, lacks) {
			points = append(points, quote.Name(m.Point))
		}
	}
	return points
}

// is reports whether this is the same mount. The host can put another one below it, or no longer tell of what it mounts.
func (m mount) is(other mount) bool {
	m.Parent, m.Follows = other.Parent, other.Follows
	return m == other
}

// unlike lists the mounts that others have not. What the kernel mounts by itself when a path is used it mounts again.
func unlike(all, others []mount) (unlike []mount) {
	for _, m := range all {
		parent := slices.IndexFunc(all, func(p mount) bool { return p.ID == m.Parent })
		if !slices.ContainsFunc(others, m.is) && (parent < 0 || !m.isAutomatic(all[parent])) {
			unlike = append(unlike, m)
		}
	}
	return unlike
}

func (m mount) isAutomatic(parent mount) bool {
	if strings.Contains(m.Point, "/.criu.") {
		return true // of a criu that was killed
	}
	switch m.Type {
	case "nfs", "nfs4", "cifs", "smb3", "afs":
		return m.Type == parent.Type
	case "tracefs":
		return parent.Type == "debugfs"
	}
	return false
}
