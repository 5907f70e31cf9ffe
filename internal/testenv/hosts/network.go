package hosts

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// The devices of a host: the link to the other one, and a pair that leads nowhere.
const (
	linkName = "eth0"
	holeName = "hole0"
	holeEnd  = "hole1"
	tunName  = "slow0"
)

// network is the network namespace of a host. It stays when the host loses its power.
type network struct {
	ns     netns.NsHandle
	handle *netlink.Handle
}

func newNetwork() (*network, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := netns.Get()
	if err != nil {
		return nil, err
	}
	defer before.Close()
	ns, err := netns.New()
	if err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	err = settings()
	if err := errors.Join(err, netns.Set(before)); err != nil {
		return nil, err
	}
	handle, err := netlink.NewHandleAt(ns)
	if err != nil {
		return nil, err
	}
	return &network{ns: ns, handle: handle}, nil
}

// settings makes the kernel's settings of a new network. The kernel is not to give links
// addresses that no cut knows, or to drop what does not come from where it would answer to.
func settings() error {
	for file, value := range map[string]string{"ipv6/conf/default/addr_gen_mode": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0"} {
		err := os.WriteFile(filepath.Join("/proc/sys/net", file), []byte(value), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // without IPv6
			return err
		}
	}
	return nil
}

func (n *network) close() {
	n.handle.Close()
	_ = n.ns.Close()
}

// do calls a function on a thread that is in the network.
func (n *network) do(call func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := netns.Get()
	if err != nil {
		return err
	}
	defer before.Close()
	if err := netns.Set(n.ns); err != nil {
		return err
	}
	return errors.Join(call(), netns.Set(before))
}

// connect makes the link between the hosts.
func (p *Pair) connect() error {
	for _, h := range p.Hosts() {
		var err error
		if h.network, err = newNetwork(); err != nil {
			return err
		}
	}
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: linkName}, PeerName: linkName, PeerNamespace: netlink.NsFd(p.B.network.ns)}
	if err := p.A.network.handle.LinkAdd(link); err != nil {
		return fmt.Errorf("make a veth pair: %w", err)
	}
	for _, h := range p.Hosts() {
		if err := h.setUpLinks(); err != nil {
			return err
		}
	}
	for _, h := range p.Hosts() {
		if err := h.nameNeighbour(); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) setUpLinks() error {
	n := h.network.handle
	hole := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: holeName}, PeerName: holeEnd}
	if err := n.LinkAdd(hole); err != nil {
		return fmt.Errorf("make a veth pair: %w", err)
	}
	for _, name := range []string{"lo", holeEnd, holeName, linkName} {
		link, err := n.LinkByName(name)
		if err != nil {
			return err
		}
		if err := n.LinkSetUp(link); err != nil {
			return fmt.Errorf("set up %s: %w", name, err)
		}
		if name != linkName {
			continue
		}
		for _, addr := range h.addresses() {
			if err := n.AddrAdd(link, &netlink.Addr{IPNet: network64(addr), Flags: noDAD(addr)}); err != nil {
				return fmt.Errorf("give %s the address %v: %w", name, addr, err)
			}
		}
	}
	return nil
}

// nameNeighbour tells the kernel where the other host is, so that a cut is silent: nobody
// gets an error because there is no answer to a question about an address.
func (h *Host) nameNeighbour() error {
	link, err := h.other.network.handle.LinkByName(linkName)
	if err != nil {
		return err
	}
	nobody := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for name, at := range map[string]net.HardwareAddr{linkName: link.Attrs().HardwareAddr, holeName: nobody} {
		device, err := h.network.handle.LinkByName(name)
		if err != nil {
			return err
		}
		for _, addr := range h.other.addresses() {
			neighbour := &netlink.Neigh{LinkIndex: device.Attrs().Index, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: at}
			if err := h.network.handle.NeighSet(neighbour); err != nil {
				return fmt.Errorf("neighbour %v at %s: %w", addr, name, err)
			}
		}
	}
	return nil
}

// addresses returns the addresses of the host that this kernel has.
func (h *Host) addresses() []netip.Addr {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return []netip.Addr{h.Addr}
	}
	return []netip.Addr{h.Addr, h.Addr6}
}

func network64(addr netip.Addr) *net.IPNet {
	bits := 24
	if addr.Is6() {
		bits = 64
	}
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, addr.BitLen())}
}

func noDAD(addr netip.Addr) int {
	const ifaNoDAD = 2
	if addr.Is6() {
		return ifaNoDAD
	}
	return 0
}

// reach makes packets to the other host leave by a device.
func (h *Host) reach(device string) error {
	link, err := h.network.handle.LinkByName(device)
	if err != nil {
		return err
	}
	for _, addr := range h.other.addresses() {
		route := &netlink.Route{
			LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Src: h.sourceFor(addr).AsSlice(), Priority: 1,
			Dst: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())},
		}
		if err := h.network.handle.RouteReplace(route); err != nil {
			return fmt.Errorf("route to %v by %s: %w", addr, device, err)
		}
	}
	return nil
}

// sourceFor returns the address of this host to which the other one answers.
func (h *Host) sourceFor(other netip.Addr) netip.Addr {
	if other.Is6() {
		return h.Addr6
	}
	return h.Addr
}

// Cut lets nothing pass between the hosts any more, without a word to anybody, as if
// somebody had pulled a plug between two switches.
func (p *Pair) Cut() {
	p.t.Helper()
	for _, h := range p.Hosts() {
		p.CutDirection(h)
	}
}

// CutDirection lets nothing pass from a host to the other one any more.
func (p *Pair) CutDirection(from *Host) {
	p.t.Helper()
	if err := from.reach(holeName); err != nil {
		p.t.Fatal(err)
	}
}

// Heal makes the link whole and fast again.
func (p *Pair) Heal() {
	p.t.Helper()
	for _, h := range p.Hosts() {
		if err := h.reach(linkName); err != nil {
			p.t.Fatal(err)
		}
	}
	if p.forward != nil {
		p.forward.stop()
		p.forward = nil
	}
}
