package tcp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// Connections are those connections of processes that criu holds.
type Connections struct {
	sockets    []*os.File
	ends       []ends
	namespaces []*os.File // of networks, without duplicates
}

// ends are the two ends of a connection, the process's first.
type ends struct{ local, remote netip.AddrPort }

// Held finds the connections that criu holds. The processes are stopped.
func Held(processes []*proc.Process) (*Connections, error) {
	c := new(Connections)
	seen := make(map[string]bool)
	for _, p := range processes {
		if err := c.add(p, seen); err != nil && !gone(err) {
			c.Close()
			return nil, fmt.Errorf("TCP connections of %v: %w", p, err)
		}
	}
	return c, nil
}

func gone(err error) bool {
	return errors.Is(err, proc.ErrGone) || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// add adds the connections of a process. Processes may share sockets.
func (c *Connections) add(p *proc.Process, seen map[string]bool) error {
	dir := filepath.Join("/proc", strconv.Itoa(p.PID))
	entries, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return err
	}
	found := false
	for _, entry := range entries {
		link, err := os.Readlink(filepath.Join(dir, "fd", entry.Name()))
		if err != nil || !strings.HasPrefix(link, "socket:") || seen[link] {
			continue
		}
		seen[link] = true
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			return err
		}
		shared, err := p.ShareDescriptor(fd)
		if err != nil {
			return err
		}
		e, held := heldEnds(shared)
		if !held {
			shared.Close()
			continue
		}
		c.sockets, c.ends, found = append(c.sockets, shared), append(c.ends, e), true
	}
	if !found {
		return nil
	}
	link, err := os.Readlink(filepath.Join(dir, "ns/net"))
	if err != nil || seen[link] {
		return err
	}
	seen[link] = true
	namespace, err := os.Open(filepath.Join(dir, "ns/net"))
	if err == nil {
		c.namespaces = append(c.namespaces, namespace)
	}
	return err
}

// heldEnds returns the ends of a TCP connection, if criu holds it.
func heldEnds(socket *os.File) (e ends, held bool) {
	_ = control(socket, func(fd int) error {
		if protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || protocol != unix.IPPROTO_TCP {
			return err
		}
		if repair, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR); err != nil || repair == 0 {
			return err
		}
		local, _ := unix.Getsockname(fd)
		remote, _ := unix.Getpeername(fd)
		e, held = ends{addressOf(local), addressOf(remote)}, true
		return nil
	})
	return e, held
}

// control calls a function with the descriptor of a socket. [os.File.Fd] would let it block, and
// with it the process's, which is the same open file.
func control(socket syscall.Conn, do func(fd int) error) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var doErr error
	err = raw.Control(func(fd uintptr) { doErr = do(int(fd)) })
	return errors.Join(err, doErr)
}

func addressOf(address unix.Sockaddr) netip.AddrPort {
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// Resume lets the connections go on.
func (c *Connections) Resume() error {
	errs := []error{c.LetPass()}
	for _, socket := range c.sockets {
		errs = append(errs, control(socket, func(fd int) error {
			return errors.Join(
				unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, unix.TCP_REPAIR_OFF),
				// The end of the repair takes it from those that had it. It does no harm to others.
				unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
		}))
	}
	return errors.Join(errs...)
}

// Close lets go of what [Held] has opened.
func (c *Connections) Close() {
	for _, f := range slices.Concat(c.sockets, c.namespaces) {
		f.Close()
	}
}
