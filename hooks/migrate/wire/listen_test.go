package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
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
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
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
