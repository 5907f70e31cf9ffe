package relay

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"
)

// udpJob answers each datagram with the address that it came from, and that datagram.
func udpJob(t *testing.T, namespace *os.File, address string) uint16 {
	t.Helper()
	var socket net.PacketConn
	inNamespace(t, namespace, func() (err error) {
		socket, err = net.ListenPacket("udp", address)
		return err
	})
	var task sync.WaitGroup
	task.Go(func() {
		data := make([]byte, maxDatagram)
		for {
			n, from, err := socket.ReadFrom(data)
			if err != nil {
				return
			}
			_, _ = socket.WriteTo([]byte(from.String()+" "+string(data[:n])), from)
		}
	})
	t.Cleanup(task.Wait)
	t.Cleanup(func() { socket.Close() })
	return netip.MustParseAddrPort(socket.LocalAddr().String()).Port()
}

// ask sends a datagram until it is answered: datagrams may be lost. It returns the address that the job sees.
func ask(t *testing.T, conn net.Conn, text string) (seen string) {
	t.Helper()
	data := make([]byte, maxDatagram)
	for end := time.Now().Add(limit); time.Now().Before(end); {
		_, _ = conn.Write([]byte(text))
		must(t, conn.SetReadDeadline(time.Now().Add(time.Second)))
		n, err := conn.Read(data)
		if err != nil {
			continue
		}
		if seen = string(data[:n-len(text)]); seen+text == string(data[:n]) {
			return seen
		}
	}
	t.Fatal("no answer")
	return ""
}

func TestUDP(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			needIPv6(t)
			namespace := newNamespace(t)
			port := udpJob(t, namespace, address)
			for _, host := range []netip.Addr{{}, netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
				r := listen(t, Publish{Address: host, Old: port, UDP: true})
				serve(t, r, namespace)
				// A connected socket takes answers only from where it has sent to.
				for _, to := range []string{"127.0.0.1", "127.0.0.2", "::1"} {
					if host.IsValid() && host.Is4() != (to != "::1") {
						continue
					}
					one, other := dialAt(t, r, to), dialAt(t, r, to)
					first, second := ask(t, one, "a"), ask(t, other, string(make([]byte, 5000)))
					if first == second || ask(t, one, "c") != first || ask(t, other, "") != second {
						t.Errorf("at %s: the job sees %q and %q", to, first, second)
					}
				}
			}
		})
	}
}

func TestUDPNobodyListens(t *testing.T) {
	namespace := newNamespace(t)
	r := listen(t, Publish{Old: 80, UDP: true})
	serve(t, r, namespace)
	conn := dialAt(t, r, "127.0.0.1")
	for range 10 {
		_, err := conn.Write([]byte("lost"))
		must(t, err)
	}
	udpJob(t, namespace, "127.0.0.1:80")
	ask(t, conn, "x")
}

func TestUDPOldestSenderGoes(t *testing.T) {
	namespace := newNamespace(t)
	r := listen(t, Publish{Old: udpJob(t, namespace, "127.0.0.1:0"), UDP: true})
	r.maxSenders = 2
	serve(t, r, namespace)
	one, two, three := dialAt(t, r, "127.0.0.1"), dialAt(t, r, "127.0.0.1"), dialAt(t, r, "127.0.0.1")
	first, second := ask(t, one, "x"), ask(t, two, "x")
	ask(t, one, "x")
	ask(t, three, "x") // in place of two
	if ask(t, one, "x") != first || ask(t, two, "x") == second {
		t.Error("another sender than the oldest has gone")
	}
}

func TestUDPIdleSenderGoes(t *testing.T) {
	namespace := newNamespace(t)
	r := listen(t, Publish{Old: udpJob(t, namespace, "127.0.0.1:0"), UDP: true})
	r.senderIdle = 50 * time.Millisecond
	serve(t, r, namespace)
	conn := dialAt(t, r, "127.0.0.1")
	first := ask(t, conn, "x")
	for end := time.Now().Add(limit); ask(t, conn, "x") == first; {
		if time.Now().After(end) {
			t.Fatal("the sender stays")
		}
		must(t, conn.SetReadDeadline(time.Now().Add(2*r.senderIdle)))
		_, _ = conn.Read(make([]byte, 1))
	}
}
