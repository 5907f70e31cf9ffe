package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// Namespace is an OS thread in a network namespace. It does what it is given, until it is closed.
type Namespace struct {
	do     chan func()
	closed context.Context
	close  context.CancelFunc
}

// Enter enters a network namespace, an open /proc/PID/ns/net, which may be closed then.
func Enter(file *os.File) (*Namespace, error) {
	n, entered := &Namespace{do: make(chan func())}, make(chan error)
	n.closed, n.close = context.WithCancel(context.Background())
	go proc.OnOwnThread(func() {
		err := proc.Use(file, func(fd int) error { return unix.Setns(fd, unix.CLONE_NEWNET) })
		if entered <- err; err != nil {
			return
		}
		for {
			select {
			case do := <-n.do:
				do()
			case <-n.closed.Done():
				return
			}
		}
	})
	if err := <-entered; err != nil {
		return nil, fmt.Errorf("enter the job's network namespace: %w", err)
	}
	return n, nil
}

// Close leaves the namespace. Its connections stay.
func (n *Namespace) Close() { n.close() }

// Dial connects to an address in the namespace. The thread does not wait for that. kind is unix.SOCK_STREAM or
// unix.SOCK_DGRAM.
func (n *Namespace) Dial(ctx context.Context, kind int, to netip.AddrPort) (net.Conn, error) {
	family := unix.AF_INET
	var address unix.Sockaddr = &unix.SockaddrInet4{Port: int(to.Port())}
	if to.Addr().Is4() {
		address.(*unix.SockaddrInet4).Addr = to.Addr().As4()
	} else {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	var socket int
	var err error
	made := make(chan struct{})
	open := func() {
		socket, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		close(made)
	}
	select {
	case n.do <- open:
		<-made
	case <-n.closed.Done():
		err = net.ErrClosed
	}
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(socket), "socket")
	defer file.Close() // FileConn duplicates it
	defer context.AfterFunc(ctx, func() { _ = file.SetWriteDeadline(time.Now()) })()
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	waitErr := raw.Write(func(fd uintptr) bool { // called again when there is a result, which connect then returns
		err = unix.Connect(int(fd), address)
		return err != unix.EINPROGRESS && err != unix.EALREADY
	})
	if err := errors.Join(waitErr, err); err != nil {
		return nil, err
	}
	conn, err := net.FileConn(file)
	if err == nil && conn.LocalAddr().String() == conn.RemoteAddr().String() {
		// Nothing listens, and the kernel happened to choose this port for our end: TCP connects to itself then.
		conn.Close()
		err = unix.ECONNREFUSED
	}
	return conn, err
}

// Loopback returns the addresses of a port of the loopback interface: by IPv4, by IPv6, and others that it may have.
func Loopback(port uint16, others ...netip.Addr) (all []netip.AddrPort) {
	for _, address := range append([]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, others...) {
		all = append(all, netip.AddrPortFrom(address, port))
	}
	return all
}
