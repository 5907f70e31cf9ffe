package wire

import (
	"net"
	"strings"
	"testing"
)

func TestAddressesThatLeadNowhereDoNoHarm(t *testing.T) {
	p := newParties(t)
	right, wrong := p.listen(t, ListenOptions{}), newParties(t).listen(t, ListenOptions{})
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, and says nothing
	must(t, err)
	defer mute.Close()
	d := &Dialer{Config: p.as(t, p.sender), Addresses: []string{
		"127.0.0.1:1", wrong.Addresses()[0], mute.Addr().String(), "name.invalid:80", "nonsense", right.Addresses()[0],
	}}
	for range 2 {
		conn, err := d.Dial(t.Context())
		must(t, err)
		if conn.RemoteAddr().String() != right.Addresses()[0] {
			t.Errorf("reached %v", conn.RemoteAddr())
		}
		conn.Close()
	}
	if first := d.order(t.Context())[0]; first != right.Addresses()[0] {
		t.Errorf("next time %s is tried first", first)
	}
}

func TestTheHintOrdersTheAddresses(t *testing.T) {
	d := &Dialer{Addresses: []string{"10.1.1.1:7", "127.0.0.1:7", "[fd00::1]:7"}, Hint: "127.0.0.1"}
	if got := strings.Join(d.order(t.Context()), " "); got != "127.0.0.1:7 10.1.1.1:7 [fd00::1]:7" {
		t.Errorf("known: %s", got)
	}
	d = &Dialer{Addresses: []string{"10.1.1.1:7", "10.1.1.2:7"}, Hint: "127.0.0.1"}
	if got := strings.Join(d.order(t.Context()), " "); got != "10.1.1.1:7 10.1.1.2:7 127.0.0.1:7" {
		t.Errorf("unknown: %s", got)
	}
	d = &Dialer{Addresses: []string{"10.1.1.1:7"}, Hint: "no such name.invalid"}
	if got := strings.Join(d.order(t.Context()), " "); got != "10.1.1.1:7" {
		t.Errorf("a name that means nothing: %s", got)
	}
}
