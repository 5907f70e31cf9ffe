package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// cutter passes connections on, and cuts them at random.
type cutter struct {
	listener net.Listener
	cuts     atomic.Int64
	running  sync.WaitGroup
}

// cut makes a cutter before an address. A connection lives for up to most bytes from the client.
func cut(t *testing.T, address string, seed, most uint64) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	c := &cutter{listener: l}
	random := rand.New(rand.NewPCG(seed, 1))
	c.running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", address)
			if err != nil {
				client.Close()
				continue
			}
			life, reset := int64(random.Uint64N(most)), random.IntN(2) == 0
			both := func() {
				if reset { // what is on its way is lost
					_ = client.(*net.TCPConn).SetLinger(0)
					_ = server.(*net.TCPConn).SetLinger(0)
				}
				client.Close()
				server.Close()
			}
			c.running.Go(func() {
				if n, _ := io.CopyN(server, client, life); n == life {
					c.cuts.Add(1)
				}
				both()
			})
			c.running.Go(func() {
				_, _ = io.Copy(client, server)
				both()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		c.running.Wait()
	})
	return c
}

func TestBrokenConnectionsLoseNothing(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			files := content(seed, sizes...)
			r, d := pinnedPair(t, ReceiveOptions{MaxBytes: total(files), MaxFiles: len(files)})
			proxy := cut(t, r.Addresses()[0], seed, 4<<20) // three that are not cut cannot bring all of it
			d.Addresses = []string{proxy.listener.Addr().String()}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			s, err := NewSender(ctx, SendOptions{Dial: d.Dial, Streams: 3})
			must(t, err)
			totals, err := sendAll(ctx, s, files)
			must(t, err)
			must(t, r.Finish())
			checkFiles(t, r.Dir.Name(), files)
			if proxy.cuts.Load() == 0 {
				t.Error("nothing was cut")
			}
			t.Logf("%d cuts, %+v", proxy.cuts.Load(), totals)
		})
	}
}

// stuck is a connection in whose way to the receiver a network cable was pulled, after some bytes.
type stuck struct {
	net.Conn
	left   int
	closed chan struct{}
	once   sync.Once
}

func (s *stuck) Write(data []byte) (int, error) {
	if s.left -= len(data); s.left > 0 {
		return s.Conn.Write(data)
	}
	<-s.closed
	return 0, net.ErrClosed
}

func (s *stuck) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Conn.Close()
}

func TestAConnectionThatHangsIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal(t, ReceiveOptions{})
		l.wrap = func(n int64, conn net.Conn) net.Conn {
			if n > 2 {
				return conn
			}
			return &stuck{Conn: conn, left: 5 << 20, closed: make(chan struct{})}
		}
		s, err := NewSender(t.Context(), SendOptions{Dial: l.dial, Streams: 2})
		must(t, err)
		began := time.Now()
		files := map[string][]byte{"a": bytes.Repeat([]byte("x"), 20<<20)}
		_, err = sendAll(t.Context(), s, files)
		must(t, err)
		must(t, l.Finish())
		checkFiles(t, l.Dir.Name(), files)
		if l.dials.Load() < 4 || time.Since(began) > stalled+time.Second {
			t.Errorf("%d connections, %v", l.dials.Load(), time.Since(began))
		}
	})
}

// A network that lets small packets pass and no large ones makes connections that look well.
func TestConnectionsThatBringNothingAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal(t, ReceiveOptions{})
		l.wrap = func(_ int64, conn net.Conn) net.Conn {
			return &stuck{Conn: conn, left: 1400, closed: make(chan struct{})}
		}
		s, err := NewSender(t.Context(), SendOptions{Dial: l.dial, Streams: 2})
		must(t, err)
		_, err = s.Connect(t.Context())
		must(t, err)
		_, err = sendAll(t.Context(), s, map[string][]byte{"a": bytes.Repeat([]byte("x"), 4<<20)})
		if err == nil || !strings.Contains(err.Error(), "no data has reached the other host for 30s: the data connection broke: it has made no progress") {
			t.Fatalf("finished with %v", err)
		}
	})
}

// A network that breaks now and then is no reason to give up a transfer that waits for the job.
func TestIdleConnectionsMayBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal(t, ReceiveOptions{})
		l.wrap = func(_ int64, conn net.Conn) net.Conn {
			time.AfterFunc(time.Minute, func() { conn.Close() })
			return conn
		}
		s, err := NewSender(t.Context(), SendOptions{Dial: l.dial, Streams: 1})
		must(t, err)
		data := bytes.Repeat([]byte("content"), 1<<20)
		f := s.Add("a", bytes.NewReader(data))
		for n := int64(1); n < 7; n++ {
			f.Grow(n << 20)
			time.Sleep(time.Hour)
		}
		f.Complete(int64(len(data)))
		_, err = s.Finish(t.Context())
		must(t, err)
		must(t, l.Finish())
		checkFiles(t, l.Dir.Name(), map[string][]byte{"a": data})
		if n := l.dials.Load(); n != 7 {
			t.Errorf("%d connections", n)
		}
	})
}

func TestPatienceEndsWithoutAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unreachable := errors.New("no route to host")
		s, err := NewSender(t.Context(), SendOptions{Patience: time.Minute, Dial: func(context.Context) (net.Conn, error) { return nil, unreachable }})
		must(t, err)
		time.Sleep(time.Hour) // nothing is to be sent
		began := time.Now()
		s.Add("a", strings.NewReader("content")).Complete(7)
		<-s.Context().Done()
		if took := time.Since(began); took < time.Minute || took > time.Minute+2*backoffLast {
			t.Errorf("given up after %v", took)
		}
		if _, err := s.Finish(t.Context()); !errors.Is(err, unreachable) || !strings.Contains(err.Error(), "no data has reached the other host for 1m0s") {
			t.Errorf("finished with %v", err)
		}
	})
}

func TestTheFirstConnectionMayBreak(t *testing.T) {
	for broken, answered := range map[int64]bool{connectTries - 1: true, connectTries: false} {
		synctest.Test(t, func(t *testing.T) {
			l := newLocal(t, ReceiveOptions{})
			l.wrap = func(n int64, conn net.Conn) net.Conn {
				if n <= broken {
					conn.Close()
				}
				return conn
			}
			s, err := NewSender(t.Context(), SendOptions{Dial: l.dial, Streams: 1})
			must(t, err)
			if _, err := s.Connect(t.Context()); (err == nil) != answered {
				t.Errorf("%d connections broke: %v", broken, err)
			}
			s.end(nil)
		})
	}
}

func TestASenderThatIsRefusedGivesUp(t *testing.T) {
	_, d := pinnedPair(t, ReceiveOptions{})
	stranger, err := NewIdentity()
	must(t, err)
	d.Config = d.Config.Clone()
	d.Config.Certificates = []tls.Certificate{stranger.certificate}
	s, err := NewSender(t.Context(), SendOptions{Dial: d.Dial, Patience: 500 * time.Millisecond})
	must(t, err)
	if _, err := s.Connect(t.Context()); err == nil {
		t.Error("a stranger was answered")
	}
	if _, err := s.Finish(t.Context()); err == nil || !strings.Contains(err.Error(), "no data has reached the other host") {
		t.Fatalf("finished with %v", err)
	}
}

func TestTheLimitIsKept(t *testing.T) {
	for _, limit := range []int64{2_000, 1_000_000, 100_000_000} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLocal(t, ReceiveOptions{})
				s, err := NewSender(t.Context(), SendOptions{Dial: l.dial, Streams: 4, BytesPerSecond: limit})
				must(t, err)
				began := time.Now()
				totals, err := sendAll(t.Context(), s, map[string][]byte{"a": bytes.Repeat([]byte("x"), 3<<20)})
				must(t, err)
				least := time.Duration(float64(totals.Sent) / float64(limit) * float64(time.Second))
				if took := time.Since(began); took < least*95/100 || took > least*105/100+time.Second {
					t.Errorf("%d bytes took %v, and %v is right", totals.Sent, took, least)
				}
				if n := l.dials.Load(); n > 4 {
					t.Errorf("the limit broke connections: %d were made", n)
				}
			})
		})
	}
}

func TestSendingEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal(t, ReceiveOptions{})
		cause := errors.New("the user has changed his mind")
		for _, whose := range []string{"sender", "finish"} {
			ctx, cancel := context.WithCancelCause(t.Context())
			senders, finishes := ctx, t.Context()
			if whose == "finish" {
				senders, finishes = t.Context(), ctx
			}
			s, err := NewSender(senders, SendOptions{Dial: l.dial, BytesPerSecond: 1000})
			must(t, err)
			s.Add(whose, bytes.NewReader(make([]byte, 100))) // never complete
			time.AfterFunc(time.Minute, func() { cancel(cause) })
			if _, err := s.Finish(finishes); !errors.Is(err, cause) {
				t.Errorf("%s: finished with %v", whose, err)
			}
		}
		if err := l.Finish(); err == nil || !strings.Contains(err.Error(), "the sender has not finished") {
			t.Errorf("received with %v", err)
		}
	})
}

func TestAFullDiskReachesTheSender(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make a full disk")
	}
	dir := t.TempDir()
	must(t, syscall.Mount("none", dir, "tmpfs", 0, "size=4m"))
	defer func() { must(t, syscall.Unmount(dir, 0)) }()
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	r, d := pinnedPair(t, ReceiveOptions{Dir: root})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	s, err := NewSender(ctx, SendOptions{Dial: d.Dial})
	must(t, err)
	_, err = sendAll(ctx, s, map[string][]byte{"large.img": bytes.Repeat([]byte("no zeros"), 8<<20)})
	if err == nil || !strings.Contains(err.Error(), "the other host cannot receive") || !strings.Contains(err.Error(), "large.img: no space left on device") {
		t.Errorf("sent with %v", err)
	}
	if err := r.Finish(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("finished with %v", err)
	}
}

func TestAFileThatCannotBeReadEndsTheTransfer(t *testing.T) {
	l := newLocal(t, ReceiveOptions{})
	for says, reader := range map[string]io.ReaderAt{"ends at 4": strings.NewReader("four"), "input/output error": badDisk{}} {
		s, err := NewSender(t.Context(), SendOptions{Dial: l.dial})
		must(t, err)
		s.Add("a", reader).Complete(10)
		if _, err := s.Finish(t.Context()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("finished with %v", err)
		}
	}
}

type badDisk struct{}

func (badDisk) ReadAt([]byte, int64) (int, error) { return 0, syscall.EIO }

func TestMistakesOfTheCallerAreRefused(t *testing.T) {
	l := newLocal(t, ReceiveOptions{})
	for _, o := range []SendOptions{{}, {Dial: l.dial, Streams: maxStreams + 1}, {Dial: l.dial, Streams: -1}, {Dial: l.dial, BytesPerSecond: -1}} {
		if _, err := NewSender(t.Context(), o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
	for _, name := range []string{"", "a/b", "..", strings.Repeat("a", 202)} {
		s, err := NewSender(t.Context(), SendOptions{Dial: l.dial})
		must(t, err)
		s.Add(name, strings.NewReader("x")).Complete(1)
		if _, err := s.Finish(t.Context()); err == nil || !strings.Contains(err.Error(), "not a valid file name") {
			t.Errorf("the name %q: %v", name, err)
		}
	}
}
