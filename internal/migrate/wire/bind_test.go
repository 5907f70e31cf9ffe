package wire

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
)

func TestPortsAreTakenFromTheRange(t *testing.T) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer first.Close()
	taken := first.Addr().(*net.TCPAddr).Port
	p := newParties(t)
	l := p.listen(t, ListenOptions{Ports: strconv.Itoa(taken) + "-" + strconv.Itoa(min(taken+50, 65535))})
	at, err := netip.ParseAddrPort(l.Addresses()[0])
	must(t, err)
	if int(at.Port()) <= taken || int(at.Port()) > taken+50 {
		t.Errorf("listens on %v", at)
	}
	if _, err := bind(t.Context(), []string{"127.0.0.1"}, strconv.Itoa(taken)); err == nil || !strings.Contains(err.Error(), "none of the ports") {
		t.Errorf("a port that is taken: %v", err)
	}
}

func TestWrongPlacesToListenAreRefused(t *testing.T) {
	for _, ports := range []string{"0", "x", "70000", "8-7", "1-", "-", "1-2-3", " 7"} {
		if _, err := bind(t.Context(), nil, ports); err == nil {
			t.Errorf("ports %q were taken", ports)
		}
	}
	for _, address := range []string{"", "host", "fe80::1", "127.0.0.1:80"} {
		if _, err := bind(t.Context(), []string{address}, ""); err == nil {
			t.Errorf("the address %q was taken", address)
		}
	}
}

func TestAddressesMeanTheSameElsewhere(t *testing.T) {
	p := newParties(t)
	for name, on := range map[string][]string{"all": {}, "any": {"0.0.0.0"}} {
		l := p.listen(t, ListenOptions{Bind: on})
		if len(l.Addresses()) == 0 {
			t.Fatalf("%s: no addresses", name)
		}
		for _, a := range l.Addresses() {
			at, err := netip.ParseAddrPort(a)
			must(t, err)
			onlyLo := len(l.Addresses()) == 1 && at.Addr().IsLoopback()
			if at.Port() == 0 || !at.Addr().IsGlobalUnicast() && !onlyLo || name == "any" && !at.Addr().Is4() {
				t.Errorf("%s: told %s", name, a)
			}
		}
		p.accepts(t, l)
	}
}
