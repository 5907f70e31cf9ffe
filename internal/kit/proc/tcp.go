package proc

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// TCPSocket is a TCP socket of a network namespace.
type TCPSocket struct {
	State         uint64 // as /proc/PID/net/tcp has it
	Local, Remote netip.AddrPort
	Inode         uint64 // 0 if no process holds it
	Received      uint64 // bytes that wait for the program; of one that listens, connections
}

// Listening reports whether the socket waits for connections.
func (s TCPSocket) Listening() bool { return s.State == unix.BPF_TCP_LISTEN }

// Connected reports whether the socket has a peer, or looks for one. criu dumps such a socket only
// with --tcp-established or --tcp-close.
func (s TCPSocket) Connected() bool {
	return slices.Contains([]uint64{
		unix.BPF_TCP_ESTABLISHED, unix.BPF_TCP_SYN_SENT, unix.BPF_TCP_SYN_RECV, unix.BPF_TCP_FIN_WAIT1,
		unix.BPF_TCP_FIN_WAIT2, unix.BPF_TCP_CLOSE_WAIT, unix.BPF_TCP_LAST_ACK, unix.BPF_TCP_CLOSING,
	}, s.State)
}

// TCPSockets lists the TCP sockets in the network namespace of a process.
func TCPSockets(pid int) ([]TCPSocket, error) {
	process, err := procfs.NewFS(fmt.Sprintf("/proc/%d", pid)) // its net/tcp, rather than ours
	if err != nil {
		return nil, GoneOr(pid, err)
	}
	//lint:ignore SA1019 sock_diag(7) needs a module that a host may lack, and rights in the namespace
	four, err := process.NetTCP()
	if err != nil {
		return nil, GoneOr(pid, err)
	}
	//lint:ignore SA1019 as above
	six, err := process.NetTCP6()
	if err != nil && !errors.Is(err, os.ErrNotExist) { // else it is without IPv6
		return nil, GoneOr(pid, err)
	}
	var sockets []TCPSocket
	seen := make(map[uint64]bool) // connections come and go meanwhile, and then the kernel may list another one twice
	for _, line := range slices.Concat(four, six) {
		if line.Inode != 0 && seen[line.Inode] {
			continue
		}
		seen[line.Inode] = true
		local, remote := addrPort(line.LocalAddr, line.LocalPort), addrPort(line.RemAddr, line.RemPort)
		sockets = append(sockets, TCPSocket{line.St, local, remote, line.Inode, line.RxQueue})
	}
	return sockets, nil
}

func addrPort(ip net.IP, port uint64) netip.AddrPort {
	address, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(address.Unmap(), uint16(port))
}

// OwnAddresses lists the IP addresses of this host.
func OwnAddresses() ([]netip.Addr, error) {
	known, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of this host: %w", err)
	}
	var own []netip.Addr
	for _, a := range known {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, prefix.Addr().Unmap())
		}
	}
	return own, nil
}
