package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
)

// ParsePorts reads LO-HI, or one port. Nothing is any free port, zero.
func ParsePorts(text string) (first, last uint64, err error) {
	if text == "" {
		return 0, 0, nil
	}
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	first, err1 := strconv.ParseUint(low, 10, 16)
	last, err2 := strconv.ParseUint(high, 10, 16)
	if err1 != nil || err2 != nil || first == 0 || last < first {
		return 0, 0, fmt.Errorf("%.60q is not a port or a range of ports, such as 7000-7010", text)
	}
	return first, last, nil
}

// bind listens on each address, on the same port if the addresses are given.
func bind(ctx context.Context, addresses []string, text string) ([]net.Listener, error) {
	first, last, err := ParsePorts(text)
	if err != nil {
		return nil, err
	}
	hosts := []string{""}
	if len(addresses) > 0 {
		hosts = nil
	}
	for _, a := range addresses {
		address, err := netip.ParseAddr(a)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%q is not an address to listen on, such as 10.0.0.2 or fd00::2", a)
		case address.Is6() && address.IsLinkLocalUnicast() && address.Zone() == "":
			return nil, fmt.Errorf("the link-local address %s needs its interface, such as %s%%eth0", a, a)
		}
		hosts = append(hosts, address.String())
	}
	var listeners []net.Listener
	for _, host := range hosts {
		l, err := listenIn(ctx, host, first, last)
		if err != nil {
			closeListeners(listeners)
			return nil, err
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

// listenIn listens on the first port of a range that is free.
func listenIn(ctx context.Context, host string, first, last uint64) (net.Listener, error) {
	// "tcp" would take 0.0.0.0 for all addresses of both families.
	network := "tcp"
	if address, err := netip.ParseAddr(host); err == nil && address.Is4() {
		network = "tcp4"
	} else if err == nil {
		network = "tcp6"
	}
	var config net.ListenConfig
	for port := first; port <= last; port++ {
		l, err := config.Listen(ctx, network, net.JoinHostPort(host, strconv.FormatUint(port, 10)))
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
	return nil, fmt.Errorf("listen on %q: none of the ports %d to %d is free; choose others with --ports", host, first, last)
}

// announced returns the addresses to tell the peer. Where the host listens on all of them, these
// are the ones that mean the same elsewhere.
func announced(listeners []net.Listener) ([]string, error) {
	of, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listen: the addresses of this host: %w", err)
	}
	var all []string
	for _, l := range listeners {
		at, err := netip.ParseAddrPort(l.Addr().String())
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		if !at.Addr().IsUnspecified() {
			all = append(all, at.String())
			continue
		}
		for _, a := range of {
			prefix, err := netip.ParsePrefix(a.String())
			if err == nil && prefix.Addr().IsGlobalUnicast() && (at.Addr().Is6() || prefix.Addr().Is4()) {
				all = append(all, netip.AddrPortFrom(prefix.Addr(), at.Port()).String())
			}
		}
		if len(all) == 0 { // the host has nothing but lo
			all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port()).String())
		}
	}
	return all, nil
}
