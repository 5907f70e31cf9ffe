package proc

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// TCPSocket is a TCP socket of a network namespace.
type TCPSocket struct {
	State         uint64 // as /proc/PID/net/tcp has it
	Local, Remote netip.AddrPort
	Inode         uint64 // 0 if no process holds it
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
	var sockets []TCPSocket
	for _, name := range []string{"tcp", "tcp6"} {
		path := fmt.Sprintf("/proc/%d/net/%s", pid, name)
		data, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) && name == "tcp6" {
			continue // without IPv6
		}
		if err != nil {
			return nil, GoneOr(pid, err)
		}
		for n, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
			if n == 0 {
				continue // the heading
			}
			s, err := parseTCP(line)
			if err != nil {
				return nil, fmt.Errorf("%s: %q: %w", path, line, err)
			}
			sockets = append(sockets, s)
		}
	}
	return sockets, nil
}

// parseTCP reads a line of /proc/PID/net/tcp or tcp6.
func parseTCP(line string) (s TCPSocket, err error) {
	// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
	fields := strings.Fields(line)
	if len(fields) < 10 {
		return s, errors.New("it has too few fields")
	}
	if s.Local, err = parseAddress(fields[1]); err != nil {
		return s, err
	}
	if s.Remote, err = parseAddress(fields[2]); err != nil {
		return s, err
	}
	if s.State, err = strconv.ParseUint(fields[3], 16, 8); err != nil {
		return s, err
	}
	s.Inode, err = strconv.ParseUint(fields[9], 10, 64)
	return s, err
}

// parseAddress reads an address as the kernel prints it: words of 32 bits in the byte order of
// this machine, then the port.
func parseAddress(text string) (netip.AddrPort, error) {
	words, port, _ := strings.Cut(text, ":")
	bytes, err := hex.DecodeString(words)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for at := 0; at+4 <= len(bytes); at += 4 {
		binary.NativeEndian.PutUint32(bytes[at:], binary.BigEndian.Uint32(bytes[at:]))
	}
	address, ok := netip.AddrFromSlice(bytes)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("%q is no address", text)
	}
	number, err := strconv.ParseUint(port, 16, 16)
	return netip.AddrPortFrom(address.Unmap(), uint16(number)), err
}
