package prepare

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// The states of a TCP socket, as /proc/PID/net/tcp has them, in which it has a peer: from
// established to closing.
var connectedStates = []uint64{1, 2, 3, 4, 5, 8, 9, 11}

const stateListening = 10

// socket is a TCP socket of the tree.
type socket struct {
	pid           int
	state         uint64
	local, remote netip.AddrPort
}

// addSockets adds the TCP sockets of the tree. A job is in one network namespace: criu dumps no
// other.
func (j *Job) addSockets(pids []int) error {
	holders := make(map[uint64]int) // by inode
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
	if len(holders) == 0 {
		return nil
	}
	net, err := procfs.NewFS(filepath.Join("/proc", strconv.Itoa(j.RootPID)))
	if err != nil {
		return err
	}
	tcp, err := net.NetTCP()
	if err != nil {
		return err
	}
	if tcp6, err := net.NetTCP6(); err == nil { // without IPv6 there is none
		tcp = append(tcp, tcp6...)
	}
	var sockets []socket
	for _, line := range tcp {
		local, ok := netip.AddrFromSlice(line.LocalAddr)
		remote, remoteOK := netip.AddrFromSlice(line.RemAddr)
		pid := holders[line.Inode]
		if pid == 0 || !ok || !remoteOK {
			continue
		}
		sockets = append(sockets, socket{
			pid: pid, state: line.St,
			local:  netip.AddrPortFrom(local.Unmap(), uint16(line.LocalPort)),
			remote: netip.AddrPortFrom(remote.Unmap(), uint16(line.RemPort)),
		})
	}
	for _, s := range sockets {
		switch {
		case s.state == stateListening:
			j.Listening = append(j.Listening, Listener{PID: s.pid, Local: s.local})
		case slices.Contains(connectedStates, s.state):
			both := slices.ContainsFunc(sockets, func(o socket) bool {
				return o.local == s.remote && o.remote == s.local && slices.Contains(connectedStates, o.state)
			})
			j.Connections = append(j.Connections, Connection{
				PID: s.pid, Local: s.local, Remote: s.remote, Inside: both && (s.local.Addr().IsLoopback() || j.Own.Network),
			})
		}
	}
	return nil
}
