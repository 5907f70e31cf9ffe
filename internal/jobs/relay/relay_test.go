package relay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limit = time.Minute // for anything that is waited for

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// newNamespace returns a network namespace whose loopback interface is up.
func newNamespace(t *testing.T) (file *os.File) {
	t.Helper()
	var err error
	proc.OnOwnThread(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return
		}
		if err = netlink.LinkSetUp(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "lo"}}); err == nil {
			file, err = os.Open("/proc/thread-self/ns/net")
		}
	})
	must(t, err)
	t.Cleanup(func() { file.Close() })
	return file
}

func inNamespace(t *testing.T, namespace *os.File, do func() error) {
	t.Helper()
	var err error
	proc.OnOwnThread(func() {
		if err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err == nil {
			err = do()
		}
	})
	must(t, err)
}

// job serves connections in a namespace; the address may have port 0. It returns the port.
func job(t *testing.T, namespace *os.File, address string, serve func(*net.TCPConn)) uint16 {
	t.Helper()
	var listener net.Listener
	inNamespace(t, namespace, func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			tasks.Go(func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(limit))
				serve(conn.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(tasks.Wait)
	t.Cleanup(func() { listener.Close() })
	return netip.MustParseAddrPort(listener.Addr().String()).Port()
}

func echo(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) }

func listen(t *testing.T, published ...Publish) *Relay {
	t.Helper()
	r, err := Listen(published)
	must(t, err)
	t.Cleanup(r.Close)
	return r
}

// serve lets a relay serve. It returns a channel that is closed when it does not any more, and what ends its context.
func serve(t *testing.T, r *Relay, namespace *os.File) (served chan struct{}, stop context.CancelFunc) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	served = make(chan struct{})
	go func() {
		defer close(served)
		if err := r.Serve(ctx, namespace, nil); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		r.Close()
		wait(t, served)
		stop()
	})
	return served, stop
}

func wait[T any](t *testing.T, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(limit):
		t.Error("waited for too long")
	}
	return value
}

// relayTo serves a port of a namespace, and returns the relay.
func relayTo(t *testing.T, namespace *os.File, port uint16) *Relay {
	t.Helper()
	r := listen(t, Publish{Old: port})
	serve(t, r, namespace)
	return r
}

func dial(t *testing.T, r *Relay) *net.TCPConn {
	t.Helper()
	return dialAt(t, r, "127.0.0.1").(*net.TCPConn)
}

// dialAt connects to the first port of a relay.
func dialAt(t *testing.T, r *Relay, host string) net.Conn {
	t.Helper()
	network := "tcp"
	if r.Published()[0].UDP {
		network = "udp"
	}
	conn, err := net.Dial(network, net.JoinHostPort(host, strconv.Itoa(int(r.Published()[0].New))))
	must(t, err)
	must(t, conn.SetDeadline(time.Now().Add(limit)))
	t.Cleanup(func() { conn.Close() })
	return conn
}

// isRefused reports whether a connection to a relay is reset at once, maybe before connect has returned.
func isRefused(t *testing.T, r *Relay) bool {
	t.Helper()
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(r.Published()[0].New))))
	if err == nil {
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(limit))
		_, err = conn.Read(make([]byte, 1))
	}
	return errors.Is(err, unix.ECONNRESET)
}

func needIPv6(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("this host is without IPv6")
	}
	listener.Close()
}

func TestManyConnectionsAtOnce(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			if address[0] == '[' {
				needIPv6(t)
			}
			namespace := newNamespace(t)
			r := relayTo(t, namespace, job(t, namespace, address, echo))
			var tasks sync.WaitGroup
			for i := range 200 {
				tasks.Go(func() {
					conn := dial(t, r)
					defer conn.Close()
					sent := bytes.Repeat([]byte(fmt.Sprint(i, " ")), 20000)
					tasks.Go(func() {
						_, err := conn.Write(sent)
						if err := errors.Join(err, conn.CloseWrite()); err != nil {
							t.Error(err)
						}
					})
					if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, sent) {
						t.Errorf("%d bytes of %d come back (%v)", len(got), len(sent), err)
					}
				})
			}
			tasks.Wait()
		})
	}
}

func TestIPv6OfTheHost(t *testing.T) {
	needIPv6(t)
	namespace := newNamespace(t)
	port := job(t, namespace, "127.0.0.1:0", echo)
	for _, p := range []Publish{{Old: port}, {Old: port, Address: netip.IPv6Loopback()}} {
		r := listen(t, p)
		serve(t, r, namespace)
		conn := dialAt(t, r, "::1")
		_, err := conn.Write([]byte("x"))
		must(t, err)
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
}

// TestBigTransferBothWays: each side sends at once what is much more than all buffers.
func TestBigTransferBothWays(t *testing.T) {
	const size = 64 << 20
	transfer := func(conn *net.TCPConn, seed byte) (sum [32]byte, err error) {
		sent := make(chan error)
		go func() {
			_, err := io.CopyN(conn, rand.NewChaCha8([32]byte{seed}), size)
			sent <- errors.Join(err, conn.CloseWrite())
		}()
		h := sha256.New()
		_, err = io.Copy(h, conn)
		return [32]byte(h.Sum(nil)), errors.Join(err, <-sent)
	}
	want := func(seed byte) (sum [32]byte) {
		h := sha256.New()
		_, _ = io.CopyN(h, rand.NewChaCha8([32]byte{seed}), size)
		return [32]byte(h.Sum(nil))
	}
	namespace := newNamespace(t)
	there := make(chan [32]byte, 1)
	r := relayTo(t, namespace, job(t, namespace, "127.0.0.1:0", func(conn *net.TCPConn) {
		sum, err := transfer(conn, 1)
		if err != nil {
			t.Error(err)
		}
		there <- sum
	}))
	sum, err := transfer(dial(t, r), 2)
	if err != nil || sum != want(1) || wait(t, there) != want(2) {
		t.Errorf("not all has come through (%v)", err)
	}
}

func TestServerClosesFirst(t *testing.T) {
	namespace := newNamespace(t)
	r := relayTo(t, namespace, job(t, namespace, "127.0.0.1:0", func(conn *net.TCPConn) {
		_, _ = conn.Write(make([]byte, 8<<20))
	}))
	conn := dial(t, r)
	if n, err := io.Copy(io.Discard, conn); err != nil || n != 8<<20 {
		t.Errorf("%d bytes come (%v)", n, err)
	}
}

// TestServerHalfCloses: what is sent to it after that still arrives.
func TestServerHalfCloses(t *testing.T) {
	namespace, got := newNamespace(t), make(chan string, 1)
	r := relayTo(t, namespace, job(t, namespace, "127.0.0.1:0", func(conn *net.TCPConn) {
		err := conn.CloseWrite()
		text, readErr := io.ReadAll(conn)
		got <- fmt.Sprint(string(text), errors.Join(err, readErr))
	}))
	conn := dial(t, r)
	if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Fatal(n, err)
	}
	_, err := conn.Write([]byte("later"))
	must(t, err, conn.CloseWrite())
	if text := wait(t, got); text != "later<nil>" {
		t.Error(text)
	}
}

func TestResetsArePassedOn(t *testing.T) {
	namespace, ended := newNamespace(t), make(chan error, 1)
	t.Run("of the peer", func(t *testing.T) {
		r := relayTo(t, namespace, job(t, namespace, "127.0.0.1:0", func(conn *net.TCPConn) {
			_, _ = io.CopyN(conn, conn, 1)
			_, err := io.Copy(io.Discard, conn)
			ended <- err
		}))
		conn := dial(t, r)
		_, err := conn.Write([]byte("x"))
		must(t, err)
		_, err = io.ReadFull(conn, make([]byte, 1))
		must(t, err)
		reset(conn)
		if err := wait(t, ended); !errors.Is(err, unix.ECONNRESET) {
			t.Error(err)
		}
	})
	// It has not read all: the kernel resets the connection then. The answer came before.
	t.Run("of the job", func(t *testing.T) {
		r := relayTo(t, namespace, job(t, namespace, "127.0.0.1:0", func(conn *net.TCPConn) {
			_, _ = io.CopyN(io.Discard, conn, 1)
			_, _ = conn.Write(make([]byte, 10000))
		}))
		conn := dial(t, r)
		sent := make(chan error)
		go func() {
			_, err := io.Copy(conn, rand.NewChaCha8([32]byte{}))
			sent <- err
		}()
		n, err := io.Copy(io.Discard, conn)
		err = errors.Join(err, wait(t, sent)) // the kernel reports it to one of them; after an end it would be EPIPE
		if n != 10000 || !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%d bytes come, then %v", n, err)
		}
	})
}

// TestNobodyListens, and then somebody does.
func TestNobodyListens(t *testing.T) {
	namespace := newNamespace(t)
	r := relayTo(t, namespace, 80)
	if !isRefused(t, r) {
		t.Fatal("not refused")
	}
	job(t, namespace, "127.0.0.1:80", func(conn *net.TCPConn) { _, _ = conn.Write([]byte("x")) })
	if n, err := dial(t, r).Read(make([]byte, 1)); n != 1 {
		t.Error(err)
	}
}

// TestNobodyListensOnAnEphemeralPort: the kernel has no other port for our end, which would connect to itself.
func TestNobodyListensOnAnEphemeralPort(t *testing.T) {
	namespace := newNamespace(t)
	inNamespace(t, namespace, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40000"), 0)
	})
	r := relayTo(t, namespace, 40000)
	if !isRefused(t, r) {
		t.Error("not refused")
	}
}

func TestConnectionsBeforeServeAreServed(t *testing.T) {
	namespace := newNamespace(t)
	r := listen(t, Publish{Old: 80})
	conn := dial(t, r)
	job(t, namespace, "127.0.0.1:80", func(conn *net.TCPConn) { _, _ = conn.Write([]byte("x")) })
	serve(t, r, namespace)
	if n, err := conn.Read(make([]byte, 1)); n != 1 {
		t.Error(err)
	}
}

func TestPortIsTaken(t *testing.T) {
	for _, udp := range []bool{false, true} {
		free, taken := listen(t, Publish{Old: 1}), listen(t, Publish{Old: 1, UDP: udp})
		first, second := free.Published()[0], taken.Published()[0]
		free.Close()
		_, err := Listen([]Publish{first, second})
		named := fmt.Sprintf("port %d of this host is in use", second.New)
		if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), named) {
			t.Error(err)
		}
		listen(t, first) // nothing is left of it
	}
	_, err := Listen([]Publish{{Address: netip.MustParseAddr("203.0.113.1"), Old: 1}})
	if !errors.Is(err, unix.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "publish 203.0.113.1:0:1: ") {
		t.Error(err)
	}
}

func TestTooManyConnections(t *testing.T) {
	namespace := newNamespace(t)
	port := job(t, namespace, "127.0.0.1:0", echo)
	r := listen(t, Publish{Old: port})
	r.connections = make(chan struct{}, 1)
	serve(t, r, namespace)
	works := func(conn net.Conn) bool {
		_, _ = conn.Write([]byte("x"))
		_, err := io.ReadFull(conn, make([]byte, 1))
		return err == nil
	}
	first := dial(t, r)
	if !works(first) || !isRefused(t, r) || !works(first) {
		t.Error("not exactly one is served")
	}
	first.Close()
	for end := time.Now().Add(limit); ; {
		conn, err := net.Dial("tcp", first.RemoteAddr().String())
		if err == nil && works(conn) {
			conn.Close()
			break
		}
		if err == nil {
			conn.Close()
		}
		if time.Now().After(end) {
			t.Fatal("none is served any more")
		}
	}
}

func TestCloseEndsWhatIsOpen(t *testing.T) {
	namespace, ended := newNamespace(t), make(chan error, 1)
	r := listen(t, Publish{Old: job(t, namespace, "127.0.0.1:0", func(conn *net.TCPConn) {
		_, _ = conn.Write([]byte("x"))
		_, err := io.Copy(io.Discard, conn)
		ended <- err
	})})
	served, _ := serve(t, r, namespace)
	conn := dial(t, r)
	_, err := io.ReadFull(conn, make([]byte, 1))
	must(t, err)
	r.Close()
	wait(t, served)
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Error(n, err)
	}
	if err := wait(t, ended); !errors.Is(err, unix.ECONNRESET) {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", conn.RemoteAddr().String()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Error(err)
	}
}

// TestWhatWasSentLastArrives although Serve is to end.
func TestWhatWasSentLastArrives(t *testing.T) {
	namespace, asked := newNamespace(t), make(chan struct{})
	r := listen(t, Publish{Old: job(t, namespace, "127.0.0.1:0", func(conn *net.TCPConn) {
		_, _ = conn.Write([]byte("x"))
		<-asked
		_, _ = conn.Write(make([]byte, 100000))
	})})
	served, stop := serve(t, r, namespace)
	conn := dial(t, r)
	_, err := io.ReadFull(conn, make([]byte, 1))
	must(t, err)
	stop()
	close(asked)
	if n, err := io.Copy(io.Discard, conn); n != 100000 || err != nil {
		t.Errorf("%d bytes come (%v)", n, err)
	}
	conn.Close()
	wait(t, served)
}

func TestNamespaceHasGone(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	must(t, cmd.Start())
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	must(t, err, cmd.Process.Kill())
	_ = cmd.Wait()
	r := relayTo(t, namespace, 80)
	if !isRefused(t, r) {
		t.Error("not refused")
	}
	must(t, namespace.Close())

	other := listen(t, Publish{Old: 80})
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer null.Close()
	for _, file := range []*os.File{null, namespace} {
		if err := other.Serve(t.Context(), file, nil); err == nil || !strings.Contains(err.Error(), "network namespace") {
			t.Error(err)
		}
	}
}

// TestOneThreadIsInTheNamespace while it is served, and none afterwards.
func TestOneThreadIsInTheNamespace(t *testing.T) {
	namespace := newNamespace(t)
	id, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", namespace.Fd()))
	must(t, err)
	threads := func() (n int) {
		files, _ := filepath.Glob("/proc/self/task/*/ns/net")
		for _, file := range files {
			if link, _ := os.Readlink(file); link == id {
				n++
			}
		}
		return n
	}
	waitFor := func(want int) {
		t.Helper()
		for end := time.Now().Add(limit); threads() != want; runtime.Gosched() { // those of the test end after it goes on
			if time.Now().After(end) {
				t.Fatalf("%d threads are in the namespace, want %d", threads(), want)
			}
		}
	}
	r := listen(t, Publish{Old: job(t, namespace, "127.0.0.1:0", echo)})
	served, _ := serve(t, r, namespace)
	for range 50 {
		conn := dial(t, r)
		must(t, conn.CloseWrite())
		_, err := io.ReadAll(conn)
		must(t, err)
	}
	waitFor(1)
	r.Close()
	wait(t, served)
	waitFor(0)
}
