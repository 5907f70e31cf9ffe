package hooks

import (
	"slices"

	"golang.org/x/sys/unix"
)

// localFileSystems are the file systems that keep a write in this host's memory or on its
// disks. The others (NFS, SMB, FUSE and the like) send it to a server or a program that may
// refuse it, and only fsync tells. File systems that are not known count among the others.
var localFileSystems = []int64{
	unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC,
	0x2fc12fc1, // ZFS
	0xca451a4e, // bcachefs
}

// syncs reports whether GPU state is brought to disk before it is dropped from the
// processes' memory. The configuration cannot switch that off where a write may still fail
// later.
func (d *dump) syncs() bool {
	if d.Config.FastLane.Sync {
		return true
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(d.imageDir, &stat); err != nil {
		return true
	}
	return !slices.Contains(localFileSystems, int64(stat.Type))
}
