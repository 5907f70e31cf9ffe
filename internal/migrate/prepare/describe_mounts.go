package prepare

import (
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// addMounts lists the mounts of the tree's own mount namespace that this program's has not.
func (j *Job) addMounts(tree *inventory.Tree) error {
	if !j.Own.Mount {
		return nil
	}
	ours, err := inventory.OwnMounts()
	if err != nil {
		return err
	}
	known := make(map[Mount]bool)
	for _, m := range ours {
		known[describeMount(m)] = true
	}
	theirs := tree.Mounts()
	if len(theirs) == 0 {
		return proc.GoneOr(j.RootPID, proc.ErrGone)
	}
	for _, m := range theirs {
		if mount := describeMount(m); !known[mount] {
			known[mount] = true
			j.Mounts = append(j.Mounts, mount)
		}
	}
	return nil
}

func describeMount(m inventory.Mount) Mount {
	return Mount{Path: proc.Printable(m.At), FileSystem: m.Kind, Source: proc.Printable(m.Source)}
}
