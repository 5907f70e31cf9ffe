package prepare

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/prometheus/procfs"

	"cucriu/internal/proc"
)

// addMounts lists the mounts of the tree's own mount namespace that this program's has not.
func (j *Job) addMounts() error {
	if !j.Own.Mount {
		return nil
	}
	ours, err := mountsOf(os.Getpid())
	if err != nil {
		return err
	}
	known := make(map[Mount]bool)
	for _, m := range ours {
		known[describeMount(m)] = true
	}
	theirs, err := mountsOf(j.RootPID)
	if err != nil {
		return err
	}
	for _, m := range theirs {
		if mount := describeMount(m); !known[mount] {
			known[mount] = true
			j.Mounts = append(j.Mounts, mount)
		}
	}
	return nil
}

func describeMount(m *procfs.MountInfo) Mount {
	return Mount{Path: m.MountPoint, FileSystem: m.FSType, Source: proc.Printable(m.Source)}
}

func (fs *files) mountsOf(pid int) (map[int]*procfs.MountInfo, error) {
	namespace, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns", "mnt"))
	if err != nil {
		return nil, proc.GoneOr(pid, err)
	}
	if fs.mounts[namespace] == nil {
		mounts, err := mountsOf(pid)
		if err != nil {
			return nil, err
		}
		byID := make(map[int]*procfs.MountInfo)
		for _, m := range mounts {
			byID[m.MountID] = m
		}
		fs.mounts[namespace] = byID
	}
	return fs.mounts[namespace], nil
}

func mountsOf(pid int) ([]*procfs.MountInfo, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return nil, proc.GoneOr(pid, err)
	}
	mounts, err := process.MountInfo()
	if err != nil {
		return nil, proc.GoneOr(pid, err)
	}
	return mounts, nil
}
