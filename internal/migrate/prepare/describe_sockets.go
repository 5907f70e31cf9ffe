package prepare

import (
	"net/netip"
	"slices"

	"cucriu/internal/kit/proc"
)

// addSockets adds the TCP sockets of the tree, whose holders are known by inode. A job is in one
// network namespace: criu dumps no other.
func (j *Job) addSockets(used *files) error {
	holders := used.sockets
	if len(holders) == 0 {
		return nil
	}
	root := used.tree.Processes[0]
	all, err := used.tree.TCPSockets(root.Namespace("net"), root.PID)
	if err != nil {
		return err
	}
	ours := slices.DeleteFunc(slices.Clone(all), func(s proc.TCPSocket) bool { return holders[s.Inode] == 0 })
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
