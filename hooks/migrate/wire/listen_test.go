package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// parties are the two sides of a migration, and somebody else.
type parties struct {
	receiver, sender, stranger *Identity
	log                        *bytes.Buffer // of the listener; read it once that is closed
}

func newParties(t *testing.T) *parties {
	t.Helper()
	p := &parties{log: new(bytes.Buffer)}
	for _, i := range []**Identity{&p.receiver, &p.sender, &p.stranger} {
		var err error
		*i, err = NewIdentity()
		must(t, err)
	}
	return p
}

// listen listens for the sender.
func (p *parties) listen(t *testing.T, o ListenOptions) *Listener {
	t.Helper()
	var err error
	o.Config, err = p.receiver.ServerConfig(p.sender.Fingerprint())
	must(t, err)
	if o.Bind == nil {
		o.Bind = []string{"127.0.0.1"}
	}
	o.Log = slog.New(slog.NewTextHandler(p.log, nil))
	l, err := Listen(t.Context(), o)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// as returns the configuration of somebody who dials the receiver.
func (p *parties) as(t *testing.T, i *Identity) *tls.Config {
	t.Helper()
	c, err := i.ClientConfig(p.receiver.Fingerprint())
	must(t, err)
	return c
}

// refusedAs waits until the listener has refused a connection.
func refusedAs(t *testing.T, l *Listener, reason string, n int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); l.Refused()[reason] < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("refused %v, and not %d times %q", l.Refused(), n, reason)
		}
	}
}

// accepts checks that the sender gets through to a listener.
func (p *parties) accepts(t *testing.T, l *Listener) {
	t.Helper()
	d := &Dialer{Addresses: l.Addresses(), Config: p.as(t, p.sender)}
	dialed := make(chan net.Conn, 1)
	go func() {
		conn, err := d.Dial(t.Context())
		if err != nil {
			t.Error(err)
		}
		dialed <- conn
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	conn, err := l.Accept(ctx)
	must(t, err)
	defer conn.Close()
	ours := <-dialed
	defer ours.Close()
	go func() { _, _ = ours.Write([]byte("hello")) }()
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		t.Fatalf("read %q, %v", got, err)
	}
}

// acceptsNobody checks that no connection waits to be accepted.
func acceptsNobody(t *testing.T, l *Listener) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if conn, err := l.Accept(ctx); err == nil {
		t.Fatalf("accepted %v", conn.RemoteAddr())
	}
}

func TestOnlyThePinnedPeerIsAccepted(t *testing.T) {
	p := newParties(t)
	for name, c := range map[string]struct {
		change func(*tls.Config)
		reason string
	}{
		"another certificate": {func(c *tls.Config) { c.Certificates = p.as(t, p.stranger).Certificates }, "not pinned"},
		"the receiver's own":  {func(c *tls.Config) { c.Certificates = p.as(t, p.receiver).Certificates }, "not pinned"},
		"the pinned one with another's key": {func(c *tls.Config) {
			c.Certificates = []tls.Certificate{{Certificate: p.sender.certificate.Certificate, PrivateKey: p.stranger.certificate.PrivateKey}}
		}, "handshake failed"},
		"the pinned one behind another": {func(c *tls.Config) {
			c.Certificates = []tls.Certificate{{
				Certificate: append(append([][]byte{}, p.stranger.certificate.Certificate...), p.sender.certificate.Certificate...),
				PrivateKey:  p.stranger.certificate.PrivateKey,
			}}
		}, "not pinned"},
		"no certificate": {func(c *tls.Config) { c.Certificates = nil }, "handshake failed"},
		"TLS 1.2":        {func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }, "handshake failed"},
	} {
		t.Run(name, func(t *testing.T) {
			l := p.listen(t, ListenOptions{})
			config := p.as(t, p.sender)
			c.change(config)
			for range 2 {
				raw, err := net.Dial("tcp", l.Addresses()[0])
				must(t, err)
				defer raw.Close()
				conn := tls.Client(raw, config)
				if err := conn.Handshake(); err == nil { // the client's half; the server may still refuse
					if n, err := conn.Read(make([]byte, 1)); err == nil {
						t.Fatalf("read %d bytes", n)
					}
				}
			}
			refusedAs(t, l, c.reason, 2)
			acceptsNobody(t, l)
			p.accepts(t, l)
			l.Close()
			if n := strings.Count(p.log.String(), "refused a data connection"); n != 1 {
				t.Errorf("%d lines in the log:\n%s", n, p.log)
			}
			p.log.Reset()
		})
	}
}

func TestOnlyThePinnedReceiverIsTalkedTo(t *testing.T) {
	p := newParties(t)
	l := p.listen(t, ListenOptions{})
	config, err := p.sender.ClientConfig(p.stranger.Fingerprint())
	must(t, err)
	d := &Dialer{Addresses: l.Addresses(), Config: config}
	if _, err := d.Dial(t.Context()); !errors.Is(err, ErrNotPinned) {
		t.Fatalf("dialed: %v", err)
	}
	acceptsNobody(t, l)
}

func TestAFingerprintIsCheckedBeforeItIsPinned(t *testing.T) {
	p := newParties(t)
	for _, wrong := range []string{"", "zz", p.sender.Fingerprint()[:62], p.sender.Fingerprint() + "00", strings.Repeat("x", 64)} {
		if _, err := p.receiver.ServerConfig(wrong); err == nil {
			t.Errorf("%q was pinned", wrong)
		}
		if _, err := p.receiver.ClientConfig(wrong); err == nil {
			t.Errorf("%q was pinned", wrong)
		}
	}
}

// recorder passes one connection on to a listener, and keeps what the client said.
func record(t *testing.T, address string) (via string, said func() []byte) {
	t.Helper()
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var heard bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer proxy.Close()
		client, err := proxy.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", address)
		if err != nil {
			client.Close()
			return
		}
		var both sync.WaitGroup
		both.Go(func() {
			_, _ = io.Copy(server, io.TeeReader(client, &heard))
			server.Close()
		})
		both.Go(func() {
			_, _ = io.Copy(client, server)
			client.Close()
		})
		both.Wait()
	}()
	return proxy.Addr().String(), func() []byte { <-done; return heard.Bytes() }
}

func TestARecordedConnectionCannotBeReplayed(t *testing.T) {
	p := newParties(t)
	l := p.listen(t, ListenOptions{})
	via, said := record(t, l.Addresses()[0])
	d := &Dialer{Addresses: []string{via}, Config: p.as(t, p.sender)}
	ours, err := d.Dial(t.Context())
	must(t, err)
	theirs, err := l.Accept(t.Context())
	must(t, err)
	_, err = ours.Write([]byte("once"))
	must(t, err)
	_, err = io.ReadFull(theirs, make([]byte, 4))
	must(t, err)
	ours.Close()
	theirs.Close()

	raw, err := net.Dial("tcp", l.Addresses()[0])
	must(t, err)
	defer raw.Close()
	_, err = raw.Write(said())
	must(t, err)
	refusedAs(t, l, "handshake failed", 1)
	acceptsNobody(t, l)
}

func TestSessionsAreNotResumed(t *testing.T) {
	p := newParties(t)
	l := p.listen(t, ListenOptions{})
	config := p.as(t, p.sender)
	config.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	for range 3 {
		go func() {
			conn, err := l.Accept(t.Context())
			if err == nil {
				_, _ = conn.Write([]byte("x"))
				conn.Close()
			}
		}()
		conn, err := tls.Dial("tcp", l.Addresses()[0], config)
		must(t, err)
		_, err = io.ReadFull(conn, make([]byte, 1)) // tickets come before the first byte
		must(t, err)
		if conn.ConnectionState().DidResume {
			t.Error("a session was resumed")
		}
		conn.Close()
	}
}

func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	p := newParties(t)
	l := p.listen(t, ListenOptions{Handshakes: 8})
	for range 30 {
		conn, err := net.Dial("tcp", l.Addresses()[0])
		must(t, err)
		defer conn.Close()
		_, err = conn.Write([]byte{22, 3, 1}) // the begin of a handshake
		must(t, err)
	}
	refusedAs(t, l, "crowded", 22)
	p.accepts(t, l)
	if n := l.Refused()["crowded"]; n > 23 {
		t.Errorf("%d had to make room", n)
	}
}

func TestAHandshakeMustNotTakeLong(t *testing.T) {
	p := newParties(t)
	l := p.listen(t, ListenOptions{HandshakeTimeout: 50 * time.Millisecond})
	conn, err := net.Dial("tcp", l.Addresses()[0])
	must(t, err)
	defer conn.Close()
	refusedAs(t, l, "too slow", 1)
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the connection is still open: %v", err)
	}
}

func TestListeningEndsWithItsContext(t *testing.T) {
	p := newParties(t)
	config, err := p.receiver.ServerConfig(p.sender.Fingerprint())
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	l, err := Listen(ctx, ListenOptions{Bind: []string{"127.0.0.1"}, Config: config})
	must(t, err)
	silent, err := net.Dial("tcp", l.Addresses()[0])
	must(t, err)
	defer silent.Close()
	cancel()
	if _, err := l.Accept(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("accepted: %v", err)
	}
	must(t, l.Close()) // waits for all goroutines
	if conn, err := net.Dial("tcp", l.Addresses()[0]); err == nil {
		conn.Close()
		t.Error("somebody still listens")
	}
}

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
