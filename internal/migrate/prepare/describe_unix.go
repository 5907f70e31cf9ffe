package prepare

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

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

// addSocketDirectories adds the directories of the UNIX sockets of the tree, as far as they exist.
func (j *Job) addSocketDirectories(pids []int) error {
	holders := socketHolders(pids)
	if len(holders) == 0 {
		return nil
	}
	f, err := os.Open(filepath.Join("/proc", strconv.Itoa(j.RootPID), "net/unix"))
	if err != nil {
		return fmt.Errorf("UNIX sockets of process %d: %w", j.RootPID, err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// Num RefCount Protocol Flags Type St Inode Path
		fields := strings.Fields(lines.Text())
		if len(fields) < 8 || !filepath.IsAbs(fields[7]) {
			continue
		}
		inode, err := strconv.ParseUint(fields[6], 10, 64)
		if err != nil || holders[inode] == 0 {
			continue
		}
		path := filepath.Dir(filepath.Clean(fields[7]))
		var stat unix.Stat_t
		known := slices.ContainsFunc(j.SocketDirectories, func(d Directory) bool { return d.Path == path })
		if known || unix.Stat(path, &stat) != nil {
			continue
		}
		j.SocketDirectories = append(j.SocketDirectories, Directory{Path: path, PID: holders[inode], Mode: stat.Mode & 0o7777, UID: int(stat.Uid), GID: int(stat.Gid)})
	}
	return lines.Err()
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
