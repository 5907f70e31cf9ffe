package hosts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Listen listens on the host, in the test's process.
func (h *Host) Listen(network, addr string) (listener net.Listener, err error) {
	err = h.network.do(func() (err error) {
		listener, err = net.Listen(network, addr)
		return err
	})
	return listener, err
}

// Dial connects from the host, in the test's process.
func (h *Host) Dial(network, addr string) (conn net.Conn, err error) {
	err = h.network.do(func() (err error) {
		conn, err = net.Dial(network, addr)
		return err
	})
	return conn, err
}

// AddAddress gives the host one more address on the link, such as one that a service moves with.
func (h *Host) AddAddress(addr netip.Addr) {
	h.pair.t.Helper()
	h.address(addr, h.network.handle.AddrAdd)
}

// RemoveAddress takes an address of the link from the host.
func (h *Host) RemoveAddress(addr netip.Addr) {
	h.pair.t.Helper()
	h.address(addr, h.network.handle.AddrDel)
}

func (h *Host) address(addr netip.Addr, do func(netlink.Link, *netlink.Addr) error) {
	h.pair.t.Helper()
	link, err := h.network.handle.LinkByName(linkName)
	if err == nil {
		err = do(link, &netlink.Addr{IPNet: network64(addr), Flags: noDAD(addr)})
	}
	if err != nil {
		h.pair.t.Fatalf("address %v of host %s: %v", addr, h.Name, err)
	}
}

// Tables lists the tables of nftables on the host that hold anything. An iptables that speaks nftables
// leaves its tables behind, empty.
func (h *Host) Tables() (names []string) {
	h.pair.t.Helper()
	err := h.network.do(func() error {
		c := new(nftables.Conn)
		tables, err := c.ListTables()
		if err != nil {
			return err
		}
		chains, err := c.ListChains()
		if err != nil {
			return err
		}
		for _, table := range tables {
			sets, err := c.GetSets(table)
			if err != nil {
				return err
			}
			empty := len(sets) == 0
			for _, chain := range chains {
				if chain.Table.Name != table.Name || chain.Table.Family != table.Family {
					continue
				}
				rules, err := c.GetRules(table, chain)
				if err != nil {
					return err
				}
				policy := chain.Policy
				empty = empty && len(rules) == 0 && chain.Hooknum != nil && policy != nil && *policy == nftables.ChainPolicyAccept
			}
			if !empty || strings.HasPrefix(table.Name, "CRIU-") {
				names = append(names, table.Name)
			}
		}
		return nil
	})
	if err != nil {
		h.pair.t.Fatal(err)
	}
	return names
}

// Break resets the TCP connections between the hosts, on both ends, and returns how many
// there were. Those with one of the ports stay, such as 22, that of ssh. It skips the test
// on a kernel that cannot reset connections.
func (p *Pair) Break(leave ...int) int {
	p.t.Helper()
	broken := 0
	err := p.A.network.do(func() error {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			sockets, err := netlink.SocketDiagTCP(family)
			if err != nil {
				return fmt.Errorf("list connections: %w", err)
			}
			for _, s := range sockets {
				orphan := s.INode == 0 // its process has closed it
				if orphan || !p.B.has(s.ID.Destination) || slices.Contains(leave, int(s.ID.SourcePort)) || slices.Contains(leave, int(s.ID.DestinationPort)) {
					continue
				}
				err := reset(s)
				if errors.Is(err, unix.ENOENT) {
					continue // it has just ended
				}
				if err != nil {
					return fmt.Errorf("reset port %d to port %d: %w", s.ID.SourcePort, s.ID.DestinationPort, err)
				}
				broken++
			}
		}
		return nil
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		p.t.Skipf("this kernel is without CONFIG_INET_DIAG_DESTROY: %v", err)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return broken
}

// reset resets a connection of the present network. The library does that for IPv4 only.
func reset(s *netlink.Socket) error {
	// struct inet_diag_req_v2
	data := []byte{s.Family, unix.IPPROTO_TCP, 0, 0}
	data = binary.NativeEndian.AppendUint32(data, math.MaxUint32) // in any state
	data = binary.BigEndian.AppendUint16(data, s.ID.SourcePort)
	data = binary.BigEndian.AppendUint16(data, s.ID.DestinationPort)
	for _, ip := range []net.IP{s.ID.Source, s.ID.Destination} {
		if s.Family == unix.AF_INET {
			ip = ip.To4()
		}
		data = append(data, append(ip, make([]byte, net.IPv6len-len(ip))...)...)
	}
	for _, word := range []uint32{s.ID.Interface, s.ID.Cookie[0], s.ID.Cookie[1]} {
		data = binary.NativeEndian.AppendUint32(data, word)
	}
	request := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
	request.AddRawData(data)
	_, err := request.Execute(unix.NETLINK_INET_DIAG, 0)
	return err
}

func (h *Host) has(ip net.IP) bool {
	addr, ok := netip.AddrFromSlice(ip)
	return ok && slices.Contains(h.addresses(), addr.Unmap())
}
