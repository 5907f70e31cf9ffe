package prepare

import (
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
)

// Directory is a directory in which the job has a UNIX socket by a name. criu makes such a socket
// anew, and not the directory.
type Directory struct {
	Path string `json:"path"`
	PID  int    `json:"pid"`  // of a process that has the socket
	Mode uint32 `json:"mode"` // permissions, as stat(2) has them
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
}

// UNIXSocket is a UNIX socket that is bound to a path.
type UNIXSocket struct {
	Path  string `json:"path"`
	PID   int    `json:"pid"` // of a process that has the socket
	Inode uint64 `json:"inode"`
}

// SocketsAt returns the sockets that have these paths on this host.
func SocketsAt(paths []string) (sockets []UNIXSocket) {
	for _, path := range paths {
		var stat unix.Stat_t
		if unix.Lstat(path, &stat) == nil {
			sockets = append(sockets, UNIXSocket{Path: path, Inode: stat.Ino})
		}
	}
	return sockets
}

// SeenHere reports whether this host sees the very socket of the source: criu would remove its path, and
// bind that to a socket of the copy.
func (s UNIXSocket) SeenHere() bool {
	var stat unix.Stat_t
	return unix.Lstat(s.Path, &stat) == nil && stat.Mode&unix.S_IFMT == unix.S_IFSOCK && stat.Ino == s.Inode
}

// SharedSocket says what is wrong with a socket that both hosts see.
func SharedSocket(path string) string {
	return "has a UNIX socket at " + path + ", which both hosts see: a copy's socket would claim its path while the job may still have to be rolled back"
}

// addUNIXSockets adds the UNIX sockets of the tree, and their directories, as far as they exist.
func (j *Job) addUNIXSockets(used *files) error {
	sockets, err := used.tree.UNIXSockets()
	if err != nil {
		return err
	}
	for _, inode := range slices.Sorted(maps.Keys(used.sockets)) {
		holder, address := used.sockets[inode], sockets[inode].Address
		if !filepath.IsAbs(address) {
			continue
		}
		name := filepath.Clean(address)
		path := filepath.Dir(name)
		var stat unix.Stat_t
		if unix.Lstat(name, &stat) == nil {
			if socket := (UNIXSocket{Path: name, PID: holder, Inode: stat.Ino}); !slices.Contains(j.UNIXSockets, socket) {
				j.UNIXSockets = append(j.UNIXSockets, socket)
			}
		}
		known := slices.ContainsFunc(j.SocketDirectories, func(d Directory) bool { return d.Path == path })
		if known || unix.Stat(path, &stat) != nil {
			continue
		}
		j.SocketDirectories = append(j.SocketDirectories, Directory{Path: path, PID: holder, Mode: stat.Mode & 0o7777, UID: int(stat.Uid), GID: int(stat.Gid)})
	}
	return nil
}

// socketDirectory looks for a directory in which the job has a socket.
func (l *fileLook) socketDirectory(n int) {
	d := &l.job.SocketDirectories[n]
	if _, err := os.Stat(d.Path); l.job.ownMount(d.Path) || err == nil {
		return
	}
	if l.policy != CopyNone {
		l.makes = append(l.makes, n)
		return
	}
	l.problem(preflight.SeverityError, d.PID, preflight.FindingDirectory, d.Path+" does not exist here, and the job has a socket in it", "mkdir -p "+d.Path+", or --copy-files makes it")
}
