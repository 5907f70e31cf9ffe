package wire

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
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
			l, d := pinnedPair(t)
			proxy := cut(t, l.Addresses()[0], seed, 8<<20)
			d.Addresses = []string{proxy.listener.Addr().String()}
			files := content(seed, sizes...)
			r := receive(t, l, ReceiveOptions{MaxBytes: total(files), MaxFiles: len(files)})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			const streams = 3
			s, err := NewSender(ctx, SendOptions{Dial: d.Dial, Streams: streams})
			must(t, err)
			totals, err := sendAll(ctx, s, files)
			must(t, err)
			must(t, r.Wait(ctx))
			must(t, r.Finish())
			checkFiles(t, r.dir, files)
			if proxy.cuts.Load() == 0 {
				t.Error("nothing was cut")
			}
			if limit := int64(totals.Connections) * windowBytes; totals.Resent > limit {
				t.Errorf("%d bytes were sent again after %d connections", totals.Resent, totals.Connections)
			}
			overhead := int64(totals.Connections+100) * 4096
			if most := totals.Bytes + totals.Resent + overhead; totals.Sent > most {
				t.Errorf("%d bytes were sent, of at most %d", totals.Sent, most)
			}
			t.Logf("%d cuts, %+v", proxy.cuts.Load(), totals)
		})
	}
}

func TestAFileCanGrowWhileItIsSent(t *testing.T) {
	l, d := pinnedPair(t)
	data := content(7, 9<<20)["file-0.img"]
	r := receive(t, l, ReceiveOptions{MaxBytes: int64(len(data)), MaxFiles: 1})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := NewSender(ctx, SendOptions{Dial: d.Dial})
	must(t, err)
	source, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	defer source.Close()
	for at := 0; at < len(data); {
		n := min(len(data)-at, 700_000+at/10)
		_, err := source.WriteAt(data[at:at+n], int64(at))
		must(t, err)
		must(t, s.Range(ctx, "grows", source, int64(at), int64(n)))
		at += n
	}
	must(t, s.Close(ctx, "grows", int64(len(data))))
	_, err = s.Finish(ctx)
	must(t, err)
	must(t, r.Finish())
	checkFiles(t, r.dir, map[string][]byte{"grows": data})
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
		totals, err := sendAll(t.Context(), s, map[string][]byte{"a": bytes.Repeat([]byte("x"), 20<<20)})
		must(t, err)
		must(t, l.receiver.Finish())
		if totals.Connections < 4 || totals.Resent == 0 || time.Since(began) > aliveDead+aliveEvery {
			t.Errorf("%+v after %v", totals, time.Since(began))
		}
	})
}

func TestAnIdleTransferStaysConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal(t, ReceiveOptions{})
		s, err := NewSender(t.Context(), SendOptions{Dial: l.dial, Streams: 3})
		must(t, err)
		must(t, s.Range(t.Context(), "a", strings.NewReader("before"), 0, 6))
		time.Sleep(time.Hour) // the job computes
		must(t, s.Close(t.Context(), "a", 6))
		totals, err := s.Finish(t.Context())
		must(t, err)
		must(t, l.receiver.Finish())
		if totals.Connections != 3 {
			t.Errorf("%+v", totals)
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
		_, err = sendAll(t.Context(), s, map[string][]byte{"a": bytes.Repeat([]byte("x"), 4<<20)})
		if err == nil || !strings.Contains(err.Error(), "broke before anything got through") {
			t.Fatalf("finished with %v", err)
		}
	})
}

func TestATransferGoesThroughPipes(t *testing.T) {
	p := newParties(t)
	client := p.as(t, p.sender)
	server, err := p.receiver.ServerConfig(p.sender.Fingerprint())
	must(t, err)
	files := content(3, sizes...)
	l := newLocal(t, ReceiveOptions{})
	s, err := NewSender(t.Context(), SendOptions{Streams: 1, Dial: func(ctx context.Context) (net.Conn, error) {
		toReceiver, fromSender, err := os.Pipe() // as an ssh has them
		if err != nil {
			return nil, err
		}
		toSender, fromReceiver, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		go func() {
			if conn, err := Server(ctx, PipeConn(toReceiver, fromReceiver), server); err == nil {
				_ = l.receiver.Serve(ctx, conn)
			}
		}()
		return Client(ctx, PipeConn(toSender, fromSender), client)
	}})
	must(t, err)
	_, err = sendAll(t.Context(), s, files)
	must(t, err)
	must(t, l.receiver.Finish())
	checkFiles(t, l.receiver.options.Dir.Name(), files)
}
