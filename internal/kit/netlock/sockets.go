package netlock

import (
	"errors"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// Connection is a TCP connection as one of its ends sees it.
type Connection struct {
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
}

// socket is an end of a connection that a process has open.
type socket struct {
	*os.File // shared with the process
	Connection
}

// socketsOf returns the connected TCP sockets of a process, of which it takes hold: it lists them for that itself.
func socketsOf(p *proc.Process) (sockets []socket, err error) {
	open, err := proc.Descriptors(p.PID)
	for fd, link := range open {
		if !strings.HasPrefix(link, "socket:") {
			continue
		}
		f, err := p.ShareDescriptor(fd)
		if errors.Is(err, unix.EBADF) {
			continue // closed meanwhile
		}
		if err != nil {
			closeAll(sockets)
			return nil, err
		}
		if c, connected := connectionOf(f); connected {
			sockets = append(sockets, socket{f, c})
		} else {
			f.Close()
		}
	}
	return sockets, err
}

func closeAll(sockets []socket) {
	for _, s := range sockets {
		s.Close()
	}
}

// connectionOf returns the connection of a socket, and false if it has none or is not of TCP.
func connectionOf(f *os.File) (c Connection, ok bool) {
	_ = proc.Use(f, func(fd int) error {
		if protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || protocol != unix.IPPROTO_TCP {
			return err
		}
		local, err := unix.Getsockname(fd)
		if err != nil {
			return err
		}
		remote, err := unix.Getpeername(fd)
		if err != nil {
			return err
		}
		c = Connection{addrPort(local), addrPort(remote)}
		return nil
	})
	return c, c.Local.IsValid() && c.Remote.IsValid()
}

func addrPort(address unix.Sockaddr) netip.AddrPort {
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6: // criu has an IPv4 connection of such a socket in its rules for IPv4
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// Silence has the sockets end without a word to the other end.
func (l *Locks) Silence() error {
	var errs []error
	for _, n := range l.namespaces {
		for _, s := range n.sockets {
			errs = append(errs, proc.Use(s.File, func(fd int) error {
				return unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_REPAIR, 1)
			}))
		}
	}
	return errors.Join(errs...)
}

// leaveRepair has a socket send and receive again. It does nothing to one that does.
func (s socket) leaveRepair() error {
	return proc.Use(s.File, func(fd int) error {
		on, err := unix.GetsockoptInt(fd, unix.SOL_TCP, unix.TCP_REPAIR)
		if err != nil || on == 0 {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_REPAIR, 0); err != nil {
			return err
		}
		// The end of the repair takes this from those that had it. It does no harm to others.
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	})
}
