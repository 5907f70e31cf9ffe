package hooks

import (
	"io/fs"
	"syscall"
)

// FileID tells a file or directory from all others, whatever its name.
type FileID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// identify returns the identity of a file, the zero one if it has none.
func identify(info fs.FileInfo) FileID {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return FileID{}
	}
	return FileID{Device: stat.Dev, Inode: stat.Ino}
}
