// Package netns prepares network namespaces that were just made, joins prepared ones, and connects to what is in
// others. It knows no job.
package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
)

// Path is that of a network namespace that is named as ip(8) names it, or by its path.
func Path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join("/run/netns", name)
}

// Join has the calling thread, locked to its goroutine, join a network namespace that others have prepared, and that
// only root can replace.
func Join(path string) error {
	if err := durable.CheckPath("network namespace", path, 0); err != nil && !errors.Is(err, unix.ENOTDIR) {
		return err // a file is no directory
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.Because(err, "there is no network namespace "+path, "prepare it (ip netns add), or name another one")
	}
	if err != nil {
		return err
	}
	defer file.Close()
	before, beforeErr := os.Stat("/proc/thread-self/ns/net")
	if after, err := file.Stat(); err == nil && beforeErr == nil && os.SameFile(before, after) {
		return fault.New(path+" is the network of the host", "its name is host")
	}
	err = proc.Use(file, func(fd int) error { return unix.Setns(fd, unix.CLONE_NEWNET) })
	if errors.Is(err, unix.EINVAL) {
		return fault.Because(err, path+" is not a network namespace",
			"name one: by the name that ip netns list shows, or by its path")
	}
	return os.NewSyscallError("setns", err)
}

// AddLoopback gives the network namespace of the calling thread, a new one, the addresses of this host itself, and
// others that sockets in it have: who connects to one of those reaches them, as on the host that they are from.
func AddLoopback(others []netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	for _, version := range []string{"ipv4", "ipv6"} { // sockets that listen at another address
		_ = os.WriteFile("/proc/sys/net/"+version+"/ip_nonlocal_bind", []byte("1"), 0)
	}
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	defer conn.Close()
	for _, address := range others {
		if address.IsLoopback() {
			continue
		}
		if err := add(conn, address); err != nil {
			return fmt.Errorf("loopback: add address %v: %w", address, err)
		}
	}
	return nil
}

func add(conn *netlink.Conn, address netip.Addr) error {
	const loopback = 1      // the index of lo, in every network namespace
	body := make([]byte, 8) // struct ifaddrmsg
	body[0], body[1], body[2] = unix.AF_INET, byte(address.BitLen()), unix.IFA_F_NODAD
	if address.Is6() {
		body[0] = unix.AF_INET6
	}
	binary.NativeEndian.PutUint32(body[4:], loopback)
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.IFA_LOCAL, Data: address.AsSlice()}, {Type: unix.IFA_ADDRESS, Data: address.AsSlice()},
	})
	if err != nil {
		return err
	}
	const flags = netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Replace
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_NEWADDR, Flags: flags}, Data: append(body, attributes...),
	})
	return err
}
