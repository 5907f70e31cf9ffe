package prepare

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"cucriu/criuutil/proc"
)

// tcpSocket is a TCP socket of a network namespace.
type tcpSocket struct {
	state         uint64
	local, remote netip.AddrPort
	inode         uint64 // 0 if no process holds it
}

// The states of TCP sockets, as /proc/PID/net/tcp has them.
const stateListening = 0x0A

// connected reports whether the socket has a peer: its state is one of those from established to
// closing, other than TIME_WAIT.
func (s tcpSocket) connected() bool {
	return slices.Contains([]uint64{1, 2, 3, 4, 5, 8, 9, 0x0B}, s.state)
}

// tcpSockets lists the TCP sockets in the network namespace of a process.
func tcpSockets(pid int) ([]tcpSocket, error) {
	var sockets []tcpSocket
	for _, name := range []string{"tcp", "tcp6"} {
		data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "net", name))
		if errors.Is(err, os.ErrNotExist) && name == "tcp6" {
			continue // without IPv6
		}
		if err != nil {
			return nil, proc.GoneOr(pid, err)
		}
		for n, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
			if n == 0 {
				continue // the heading
			}
			s, err := parseTCP(line)
			if err != nil {
				return nil, fmt.Errorf("/proc/%d/net/%s: %q: %w", pid, name, line, err)
			}
			sockets = append(sockets, s)
		}
	}
	return sockets, nil
}

// parseTCP reads a line of /proc/PID/net/tcp or tcp6.
func parseTCP(line string) (s tcpSocket, err error) {
	// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
	fields := strings.Fields(line)
	if len(fields) < 10 {
		return s, errors.New("it has too few fields")
	}
	if s.local, err = parseAddress(fields[1]); err != nil {
		return s, err
	}
	if s.remote, err = parseAddress(fields[2]); err != nil {
		return s, err
	}
	if s.state, err = strconv.ParseUint(fields[3], 16, 8); err != nil {
		return s, err
	}
	s.inode, err = strconv.ParseUint(fields[9], 10, 64)
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
