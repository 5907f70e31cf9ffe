package hosts

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// onBothFamilies runs a test with IPv4 and, where there is one, IPv6.
func onBothFamilies(t *testing.T, p *Pair, test func(t *testing.T, a, b netip.Addr)) {
	t.Helper()
	for i, addr := range p.A.addresses() {
		t.Run([]string{"ipv4", "ipv6"}[i], func(t *testing.T) {
			p.In(t)
			test(t, addr, p.B.addresses()[i])
		})
	}
}

// echo returns a connection from host a to something on host b that sends all back.
func echo(t *testing.T, p *Pair, b netip.Addr) *net.TCPConn {
	t.Helper()
	listener, err := p.B.Listen("tcp", netip.AddrPortFrom(b, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}
	}()
	conn, err := p.A.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}

// answers reports whether a byte comes back within a time. Without a cut, any error fails
// the test.
func answers(t *testing.T, conn net.Conn, within time.Duration) bool {
	t.Helper()
	if _, err := conn.Write([]byte{1}); err != nil {
		t.Fatalf("the link is not silent: %v", err)
	}
	return hears(t, conn, within)
}

func hears(t *testing.T, conn net.Conn, within time.Duration) bool {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	_, err := io.ReadFull(conn, make([]byte, 1))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the link is not silent: %v", err)
	}
	return err == nil
}

func TestACutIsSilentAndHeals(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := New(t, Options{WithoutSSH: true})
		onBothFamilies(t, p, func(t *testing.T, _, b netip.Addr) {
			conn := echo(t, p, b)
			if !answers(t, conn, testenv.Soon) {
				t.Fatal("no answer over a whole link")
			}
			for name, cut := range map[string]func(){
				"": p.Cut, " in one direction": func() { p.CutDirection(p.A) }, " in the other direction": func() { p.CutDirection(p.B) },
			} {
				cut()
				if answers(t, conn, 300*time.Millisecond) {
					t.Fatalf("an answer over a link that is cut%s", name)
				}
				p.Heal()
				if !hears(t, conn, testenv.Soon) {
					t.Fatalf("no answer after the link was cut%s and has healed", name)
				}
			}
		})
	})
}

func TestALinkCanBeSlow(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := New(t, Options{WithoutSSH: true})
		onBothFamilies(t, p, func(t *testing.T, _, b netip.Addr) {
			conn := echo(t, p, b)
			answers(t, conn, testenv.Soon)

			p.Shape(Shape{Delay: 30 * time.Millisecond})
			began := time.Now()
			if answered := answers(t, conn, testenv.Soon); !answered || time.Since(began) < 60*time.Millisecond {
				t.Errorf("an answer after %v (%v), want at least 60ms", time.Since(began), answered)
			}

			const bytes = 1 << 20
			p.Shape(Shape{Rate: 2 * bytes})
			began = time.Now()
			go func() { _, _ = conn.Write(make([]byte, bytes)) }()
			if err := conn.SetReadDeadline(time.Now().Add(testenv.Soon)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(conn, make([]byte, bytes)); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took < 400*time.Millisecond {
				t.Errorf("1 MiB took %v at 2 MiB/s", took)
			}

			p.Heal()
			if !answers(t, conn, testenv.Soon) {
				t.Error("no answer over a good link")
			}
		})
	})
}

func TestConnectionsBreak(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := New(t, Options{WithoutSSH: true})
		onBothFamilies(t, p, func(t *testing.T, _, b netip.Addr) {
			stays, breaks := echo(t, p, b), echo(t, p, b)
			for _, conn := range []*net.TCPConn{stays, breaks} {
				answers(t, conn, testenv.Soon)
			}
			if n := p.Break(stays.RemoteAddr().(*net.TCPAddr).Port); n != 1 {
				t.Fatalf("%d connections were broken, want 1", n)
			}
			if _, err := breaks.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) && !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("the connection has not been broken: %v", err)
			}
			if !answers(t, stays, testenv.Soon) {
				t.Error("the other connection does not answer")
			}
		})
	})
}
