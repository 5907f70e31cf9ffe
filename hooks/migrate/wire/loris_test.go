package wire

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

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
