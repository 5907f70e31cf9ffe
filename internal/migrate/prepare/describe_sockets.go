package prepare

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"cucriu/internal/proc"
)

// addSockets adds the TCP sockets of the tree. A job is in one network namespace: criu dumps no
// other.
func (j *Job) addSockets(pids []int) error {
	holders := socketHolders(pids)
	if len(holders) == 0 {
		return nil
	}
	all, err := proc.TCPSockets(j.RootPID)
	if err != nil {
		return err
	}
	ours := slices.DeleteFunc(all, func(s proc.TCPSocket) bool { return holders[s.Inode] == 0 })
	ends := make(map[[2]netip.AddrPort]bool)
	for _, s := range ours {
		if s.Connected() {
			ends[[2]netip.AddrPort{s.Local, s.Remote}] = true
		}
	}
	for _, s := range ours {
		switch {
		case s.Listening():
			j.Listening = append(j.Listening, Listener{PID: holders[s.Inode], Local: s.Local})
		case s.Connected():
			both := ends[[2]netip.AddrPort{s.Remote, s.Local}]
			j.Connections = append(j.Connections, Connection{
				PID: holders[s.Inode], Local: s.Local, Remote: s.Remote, Inside: both && (s.Local.Addr().IsLoopback() || j.Own.Network),
			})
		}
	}
	return nil
}

// socketHolders finds for each socket of the tree, by its inode, a process that holds it.
func socketHolders(pids []int) map[uint64]int {
	holders := make(map[uint64]int)
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended
		}
		for _, entry := range entries {
			link, err := os.Readlink(filepath.Join(dir, entry.Name()))
			number, is := strings.CutPrefix(link, "socket:[")
			if err != nil || !is {
				continue
			}
			inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
			if err == nil && holders[inode] == 0 {
				holders[inode] = pid
			}
		}
	}
	return holders
}
