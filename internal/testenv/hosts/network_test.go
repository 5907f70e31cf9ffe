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
			p.Cut()
			if answers(t, conn, 300*time.Millisecond) {
				t.Fatal("an answer over a link that is cut")
			}
			p.Heal()
			if !hears(t, conn, testenv.Soon) {
				t.Fatal("no answer after the link has healed")
			}
		})
	})
}

func TestACutInOneDirectionLeavesTheOther(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := New(t, Options{WithoutSSH: true})
		onBothFamilies(t, p, func(t *testing.T, a, b netip.Addr) {
			p.CutDirection(p.A)
			if n := datagrams(t, p.A, p.B, b, 5); n != 0 {
				t.Errorf("%d of 5 packets passed in the direction that is cut", n)
			}
			if n := datagrams(t, p.B, p.A, a, 5); n != 5 {
				t.Errorf("%d of 5 packets passed in the other direction", n)
			}
			p.Heal()
			if n := datagrams(t, p.A, p.B, b, 5); n != 5 {
				t.Errorf("%d of 5 packets passed after the link has healed", n)
			}
		})
	})
}

// datagrams sends datagrams from a host to the other one and returns how many come.
func datagrams(t *testing.T, from, to *Host, addr netip.Addr, n int) int {
	t.Helper()
	socket, err := to.ListenPacket("udp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	conn, err := from.Dial("udp", socket.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i := range n {
		if _, err := conn.Write([]byte{1}); err != nil {
			t.Fatalf("the link is not silent: %v", err)
		}
		if i%20 == 19 {
			time.Sleep(time.Millisecond)
		}
	}
	came := 0
	for {
		if err := socket.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := socket.ReadFrom(make([]byte, 10)); err != nil {
			return came
		}
		came++
	}
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

			p.Shape(Shape{Loss: 0.5})
			if n := datagrams(t, p.A, p.B, b, 400); n < 100 || n > 300 {
				t.Errorf("%d of 400 packets came over a link that loses half of them", n)
			}
			p.Heal()
			if n := datagrams(t, p.A, p.B, b, 20); n != 20 {
				t.Errorf("%d of 20 packets came over a good link", n)
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
