package netlock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/fault"
)

// timeWaitLimit is a little longer than the kernel keeps a connection in TIME_WAIT (one minute).
const timeWaitLimit = 75 * time.Second

// FreeAddresses frees local TCP addresses of this network namespace from connections that no
// process has open any more but whose state the kernel keeps for a while: they make bind fail unless
// both sockets set SO_REUSEADDR. It removes them where the kernel can (SOCK_DESTROY, for TIME_WAIT
// since Linux 6.0), and otherwise calls waits and waits until they are over. It returns how many
// there were.
func FreeAddresses(ctx context.Context, addresses []netip.AddrPort, waits func(n int)) (removed int, err error) {
	if len(addresses) == 0 {
		return 0, nil
	}
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return 0, fmt.Errorf("list TCP connections: %w", err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, timeWaitLimit)
	defer cancel()
	for tried := false; ; tried = true {
		left, err := leftBehind(conn, addresses)
		if err != nil {
			return removed, err
		}
		if !tried {
			removed = len(left)
		}
		left = slices.DeleteFunc(left, func(c leftover) bool { return c.destroy(conn) == nil })
		if len(left) == 0 {
			return removed, nil
		}
		if !tried {
			waits(len(left))
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return removed, context.Cause(ctx)
			}
			return removed, fault.Because(ctx.Err(), fmt.Sprintf("the kernel keeps closed connections of %v in TIME_WAIT (%d)", left[0].local, len(left)), "restore again in a minute")
		case <-time.After(200 * time.Millisecond): // the kernel reports no end
		}
	}
}

// leftover is a connection that is kept although no process has it open.
type leftover struct {
	family byte
	id     []byte // struct inet_diag_sockid, with the cookie that tells it from later ones
	local  netip.AddrPort
}

const (
	byFamily = 20 // SOCK_DIAG_BY_FAMILY
	destroy  = 21 // SOCK_DESTROY
	idSize   = 48 // of struct inet_diag_sockid
)

// request returns a struct inet_diag_req_v2.
func request(family byte, states uint32, id []byte) []byte {
	data := make([]byte, 8+idSize)
	data[0], data[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(data[4:], states)
	copy(data[8:], id)
	return data
}

// leftBehind lists the connections that hold one of the addresses.
func leftBehind(conn *netlink.Conn, addresses []netip.AddrPort) (all []leftover, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		// The kernel reports as FIN_WAIT2 what ends as TIME_WAIT does once the other end closes.
		messages, err := conn.Execute(netlink.Message{
			Header: netlink.Header{Type: byFamily, Flags: netlink.Request | netlink.Dump},
			Data:   request(family, 1<<unix.BPF_TCP_TIME_WAIT|1<<unix.BPF_TCP_FIN_WAIT2, nil),
		})
		if family == unix.AF_INET6 && errors.Is(err, unix.ENOENT) {
			break // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("list TCP connections: %w", err)
		}
		for _, m := range messages {
			const inodeAt = 4 + idSize + 16 // struct inet_diag_msg
			if len(m.Data) < inodeAt+4 || binary.NativeEndian.Uint32(m.Data[inodeAt:]) != 0 {
				continue
			}
			id := m.Data[4 : 4+idSize]
			size := 4
			if family == unix.AF_INET6 {
				size = 16
			}
			address, _ := netip.AddrFromSlice(id[4 : 4+size])
			c := leftover{family, id, netip.AddrPortFrom(address.Unmap(), binary.BigEndian.Uint16(id))}
			if slices.ContainsFunc(addresses, c.holds) {
				all = append(all, c)
			}
		}
	}
	return all, nil
}

// holds reports whether the connection may keep a socket from being bound to an address.
func (c leftover) holds(a netip.AddrPort) bool {
	return c.local.Port() == a.Port() && (c.local.Addr() == a.Addr() || a.Addr().IsUnspecified())
}

// destroy removes the connection. It succeeds if it is over.
func (c leftover) destroy(conn *netlink.Conn) error {
	_, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: destroy, Flags: netlink.Request | netlink.Acknowledge}, Data: request(c.family, 0, c.id),
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
