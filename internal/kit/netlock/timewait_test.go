package netlock

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// closedConnection returns the address of a listener that has closed a connection, which the kernel
// keeps in TIME_WAIT.
func closedConnection(t *testing.T, address string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", address)
	must(t, err)
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	served, err := l.Accept()
	must(t, err)
	must(t, served.Close())
	if n, err := client.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatalf("read %d bytes: %v", n, err)
	}
	must(t, client.Close())
	ours := netip.MustParseAddrPort(l.Addr().String())
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // a busy kernel delivers packets late
		sockets, err := proc.TCPSockets(os.Getpid())
		must(t, err)
		if slices.ContainsFunc(sockets, func(s proc.TCPSocket) bool { return s.Local == ours && s.State == unix.BPF_TCP_TIME_WAIT }) {
			return ours
		}
		if time.Now().After(deadline) {
			t.Fatalf("no connection of %v is in TIME_WAIT", ours)
		}
	}
}

func TestAddressesAreFreed(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		ours, other := closedConnection(t, address), closedConnection(t, address)
		never := func(n int) { t.Errorf("waits for %d connections", n) }
		if n, err := FreeAddresses(t.Context(), []netip.AddrPort{ours}, never); n != 1 || err != nil {
			t.Errorf("%s: removed %d: %v", address, n, err)
		}
		anywhere := netip.AddrPortFrom(netip.IPv6Unspecified(), other.Port())
		if n, err := FreeAddresses(t.Context(), []netip.AddrPort{ours, anywhere}, never); n < 1 || err != nil { // others of this machine may have one of this port
			t.Errorf("%s: removed %d on all addresses: %v", address, n, err)
		}
	}
}

// TestWhatCannotBeRemovedIsWaitedFor as on a kernel without SOCK_DESTROY: here the thread lacks the
// right to it, and another one removes the connection meanwhile.
func TestWhatCannotBeRemovedIsWaitedFor(t *testing.T) {
	ours := []netip.AddrPort{closedConnection(t, "127.0.0.1:0")}
	withoutRight := func(ctx context.Context, waits func(int)) error {
		var err error
		proc.OnOwnThread(func() {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			if err = unix.Capset(&header, &make([]unix.CapUserData, 2)[0]); err == nil {
				_, err = FreeAddresses(ctx, ours, waits)
			}
		})
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := withoutRight(ctx, func(int) {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it did not wait until the limit: %v", err)
	}
	waited := 0
	err := withoutRight(t.Context(), func(n int) {
		waited = n
		go func() { _, _ = FreeAddresses(t.Context(), ours, func(int) {}) }()
	})
	if waited != 1 || err != nil {
		t.Errorf("waited for %d connections: %v", waited, err)
	}
}
