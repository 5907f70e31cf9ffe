package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/procfs"

	"cucriu/internal/durable"
	"cucriu/internal/fault"
	"cucriu/internal/quote"
)

const mountsName = "mounts.json" // the mounts that the sandbox was made with; written by its init

// mount is what tells one mount of a namespace from another.
type mount struct {
	ID, Parent                int
	Device, Root, Point, Type string
	// FromHost says that the host has mounted it, and this namespace has followed. What the job mounts follows nobody, or what
	// another mount follows, too, from which it was bound.
	FromHost bool `json:"-"`
}

// mounts lists those of this process's namespace.
func mounts() (all []mount, err error) {
	infos, err := procfs.GetMounts()
	followers := make(map[string]int)
	for _, i := range infos {
		followers[i.OptionalFields["master"]]++
	}
	for _, i := range infos {
		master, follows := i.OptionalFields["master"]
		all = append(all, mount{i.MountID, i.ParentID, i.MajorMinorVer, i.Root, i.MountPoint, i.FSType, follows && followers[master] == 1})
	}
	return all, err
}

// recordMounts notes what is mounted before the job is there.
func recordMounts(dir string) error {
	all, err := mounts()
	if err != nil {
		return err
	}
	return durable.WriteJSON(filepath.Join(dir, mountsName), all)
}

// RefuseMounts refuses a job that has mounted or unmounted something in its sandbox, whose records are in dir: a mount
// ends with the sandbox, and what is in it is in no checkpoint. To be called in the sandbox.
func RefuseMounts(dir string) error {
	var known []mount
	err := durable.ReadJSON(filepath.Join(dir, mountsName), &known)
	if errors.Is(err, os.ErrNotExist) {
		return nil // an earlier version has made the sandbox
	}
	if err != nil {
		return err
	}
	all, err := mounts()
	if err != nil {
		return err
	}
	if points := append(unlike(all, known), unlike(known, all)...); len(points) > 0 {
		return fault.New("the job has mounted or unmounted something on "+strings.Join(points, ", ")+" in its sandbox, which would be otherwise after a resume",
			"let the job undo that, or do it on the host before cucriu run starts the job")
	}
	return nil
}

// unlike lists where there are mounts that others have not. What the kernel mounts by itself when a path is used it
// mounts again.
func unlike(all, others []mount) (points []string) {
	for _, m := range all {
		parent := slices.IndexFunc(all, func(p mount) bool { return p.ID == m.Parent })
		known := slices.ContainsFunc(others, func(o mount) bool { o.FromHost = m.FromHost; return o == m })
		if !known && (parent < 0 || !m.isAutomatic(all[parent])) {
			points = append(points, quote.Name(m.Point))
		}
	}
	return points
}

func (m mount) isAutomatic(parent mount) bool {
	if m.FromHost || parent.Type == "autofs" || strings.Contains(m.Point, "/.criu.") { // of a criu that was killed
		return true
	}
	switch m.Type {
	case "nfs", "nfs4", "cifs", "smb3", "afs":
		return m.Type == parent.Type
	case "tracefs":
		return parent.Type == "debugfs"
	}
	return false
}
