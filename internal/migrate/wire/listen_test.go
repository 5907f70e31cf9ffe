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

// lockedBuffer is what a receiver logs.
type lockedBuffer struct {
	mutex sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(data []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.Buffer.Write(data)
}

func (b *lockedBuffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.Buffer.String()
}

// parties are the two sides of a migration, and somebody else.
type parties struct {
	receiver, sender, stranger *Identity
	log                        *lockedBuffer
}

func newParties(t *testing.T) *parties {
	t.Helper()
	p := &parties{log: new(lockedBuffer)}
	for _, i := range []**Identity{&p.receiver, &p.sender, &p.stranger} {
		var err error
		*i, err = NewIdentity()
		must(t, err)
	}
	return p
}

// listen listens for the sender.
func (p *parties) listen(t *testing.T, o ListenOptions) *Receiver {
	t.Helper()
	var err error
	o.Config, err = p.receiver.ServerConfig(p.sender.Fingerprint())
	must(t, err)
	if o.Bind == nil {
		o.Bind = []string{"127.0.0.1"}
	}
	o.Log = slog.New(slog.NewTextHandler(p.log, nil))
	l, err := Receive(t.Context(), o, ReceiveOptions{})
	must(t, err)
	t.Cleanup(func() { _ = l.Finish() })
	return l
}

// as returns the configuration of somebody who dials the receiver.
func (p *parties) as(t *testing.T, i *Identity) *tls.Config {
	t.Helper()
	c, err := i.ClientConfig(p.receiver.Fingerprint())
	must(t, err)
	return c
}

// accepts checks that the sender gets through to a receiver.
func (p *parties) accepts(t *testing.T, l *Receiver) {
	t.Helper()
	d := &Dialer{Addresses: l.Addresses(), Config: p.as(t, p.sender)}
	s, err := NewSender(t.Context(), SendOptions{Dial: d.Dial})
	must(t, err)
	_, err = s.Connect(t.Context())
	must(t, err)
}

func TestOnlyThePinnedPeerIsAccepted(t *testing.T) {
	p := newParties(t)
	for name, c := range map[string]struct {
		change func(*tls.Config)
		reason string
	}{
		"another certificate": {func(c *tls.Config) { c.Certificates = p.as(t, p.stranger).Certificates }, "not the one that was announced"},
		"the receiver's own":  {func(c *tls.Config) { c.Certificates = p.as(t, p.receiver).Certificates }, "not the one that was announced"},
		"the pinned one with another's key": {func(c *tls.Config) {
			c.Certificates = []tls.Certificate{{Certificate: p.sender.certificate.Certificate, PrivateKey: p.stranger.certificate.PrivateKey}}
		}, "TLS handshake error"},
		"the pinned one behind another": {func(c *tls.Config) {
			c.Certificates = []tls.Certificate{{
				Certificate: append(append([][]byte{}, p.stranger.certificate.Certificate...), p.sender.certificate.Certificate...),
				PrivateKey:  p.stranger.certificate.PrivateKey,
			}}
		}, "not the one that was announced"},
		"no certificate": {func(c *tls.Config) { c.Certificates = nil }, "TLS handshake error"},
		"TLS 1.2":        {func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }, "TLS handshake error"},
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
					_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: receiver\r\n\r\n")
					if n, err := conn.Read(make([]byte, 1)); err == nil {
						t.Fatalf("read %d bytes", n)
					}
				}
			}
			p.accepts(t, l)
			for deadline := time.Now().Add(time.Minute); !strings.Contains(p.log.String(), c.reason); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the log does not say %q:\n%s", c.reason, p.log)
				}
			}
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

func TestSessionsAreNotResumed(t *testing.T) {
	p := newParties(t)
	l := p.listen(t, ListenOptions{})
	config := p.as(t, p.sender)
	config.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	for range 3 {
		conn, err := tls.Dial("tcp", l.Addresses()[0], config)
		must(t, err)
		_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: receiver\r\n\r\n")
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
	l, err := Receive(ctx, ListenOptions{Bind: []string{"127.0.0.1"}, Config: config}, ReceiveOptions{})
	must(t, err)
	silent, err := net.Dial("tcp", l.Addresses()[0])
	must(t, err)
	defer silent.Close()
	cancel()
	if _, err := silent.Read(make([]byte, 1)); err == nil {
		t.Error("a silent connection was answered")
	}
	if conn, err := net.Dial("tcp", l.Addresses()[0]); err == nil {
		conn.Close()
		t.Error("somebody still listens")
	}
}
