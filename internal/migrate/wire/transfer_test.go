package wire

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pinnedPair returns a receiver, and a way to it for its sender.
func pinnedPair(t testing.TB, o ReceiveOptions) (*Receiver, *Dialer) {
	t.Helper()
	receiver, err := NewIdentity()
	must(t, err)
	sender, err := NewIdentity()
	must(t, err)
	server, err := receiver.ServerConfig(sender.Fingerprint())
	must(t, err)
	client, err := sender.ClientConfig(receiver.Fingerprint())
	must(t, err)
	r, err := Receive(t.Context(), ListenOptions{Bind: []string{"127.0.0.1"}, Config: server}, filled(t, o))
	must(t, err)
	t.Cleanup(func() { _ = r.Finish() })
	return r, &Dialer{Addresses: r.Addresses(), Config: client}
}

// filled returns options with a directory and bounds, unless they have some.
func filled(t testing.TB, o ReceiveOptions) ReceiveOptions {
	t.Helper()
	if o.Dir == nil {
		root, err := os.OpenRoot(t.TempDir())
		must(t, err)
		t.Cleanup(func() { root.Close() })
		o.Dir = root
	}
	if o.MaxBytes == 0 {
		o.MaxBytes, o.MaxFiles = 1<<30, 1000
	}
	return o
}

// local is a receiver at the other end of pipes, for tests with a clock of their own.
type local struct {
	*Receiver
	conns chan net.Conn
	ended chan struct{}
	dials atomic.Int64
	wrap  func(n int64, conn net.Conn) net.Conn // the sender's end; may be nil
}

func newLocal(t *testing.T, o ReceiveOptions) *local {
	t.Helper()
	l := &local{Receiver: newReceiver(nil, filled(t, o)), conns: make(chan net.Conn), ended: make(chan struct{})}
	go func() { _ = l.server.Serve(l) }()
	t.Cleanup(func() { _ = l.Finish() })
	return l
}

func (l *local) dial(context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
	case <-l.ended:
		return nil, net.ErrClosed
	}
	if n := l.dials.Add(1); l.wrap != nil {
		return l.wrap(n, ours), nil
	}
	return ours, nil
}

func (l *local) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

func (l *local) Close() error {
	close(l.ended)
	return nil
}

func (l *local) Addr() net.Addr { return &net.UnixAddr{} }

// content is files that compress in part, with holes.
func content(seed uint64, sizes ...int) map[string][]byte {
	random := rand.New(rand.NewPCG(seed, 0))
	files := make(map[string][]byte)
	for i, size := range sizes {
		data := make([]byte, size)
		for at := 0; at < size; at += 300_000 {
			part := data[at:min(size, at+300_000)]
			switch random.IntN(4) {
			case 0: // zeros
				at += 2 << 20
			case 1:
				copy(part, bytes.Repeat([]byte("the same again; "), len(part)/16))
			default:
				for j := range part {
					part[j] = byte(random.Uint32())
				}
			}
		}
		files[fmt.Sprintf("file-%d.img", i)] = data
	}
	return files
}

// sendAll sends files.
func sendAll(ctx context.Context, s *Sender, files map[string][]byte) (Totals, error) {
	for name, data := range files {
		s.Add(name, bytes.NewReader(data)).Complete(int64(len(data)))
	}
	return s.Finish(ctx)
}

func checkFiles(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	if len(entries) != len(files) {
		t.Errorf("%d files came of %d", len(entries), len(files))
	}
	for name, data := range files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		if !bytes.Equal(got, data) {
			t.Errorf("%s: the %d bytes that came are not the %d that were sent", name, len(got), len(data))
		}
	}
}

func total(files map[string][]byte) (n int64) {
	for _, data := range files {
		n += int64(len(data))
	}
	return n
}

var sizes = []int{0, 1, 4095, PieceSize - 1, PieceSize, PieceSize + 1, 17<<20 + 12345, 5 << 20}

func TestFilesArriveAsTheyWere(t *testing.T) {
	files := content(1, sizes...)
	for i := range 3 * maxRanges {
		files[fmt.Sprint("small-", i)] = []byte(fmt.Sprint("content ", i))
	}
	for _, compressed := range []bool{false, true} {
		t.Run(fmt.Sprint("compressed ", compressed), func(t *testing.T) {
			r, d := pinnedPair(t, ReceiveOptions{MaxBytes: total(files), MaxFiles: len(files)})
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			s, err := NewSender(ctx, SendOptions{Dial: d.Dial, Compress: compressed})
			must(t, err)
			totals, err := sendAll(ctx, s, files)
			must(t, err)
			must(t, r.Finish())
			checkFiles(t, r.Dir.Name(), files)
			if totals.Bytes != total(files) || s.Arrived() != totals.Bytes {
				t.Errorf("totals %+v, %d arrived", totals, s.Arrived())
			}
			most := int64(17 << 20) // the rest is zeros
			if compressed {
				most = 13 << 20
			}
			if totals.Sent > most {
				t.Errorf("%d bytes were sent of %d", totals.Sent, totals.Bytes)
			}
		})
	}
}

func TestFilesAreSentWhileTheyGrow(t *testing.T) {
	r, d := pinnedPair(t, ReceiveOptions{})
	files := content(2, 5<<20+77, 3<<20, 0, 10)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	s, err := NewSender(ctx, SendOptions{Dial: d.Dial})
	must(t, err)
	growing := make(map[string]*File)
	for name, data := range files {
		growing[name] = s.Add(name, bytes.NewReader(data))
		growing[name].Grow(int64(len(data)) / 2)
	}
	for s.Arrived() < 3<<20 { // whole pieces of the halves: 2 and 1 MiB
		if ctx.Err() != nil {
			t.Fatal("nothing is sent before the files are complete")
		}
		time.Sleep(time.Millisecond)
	}
	for name, data := range files {
		growing[name].Complete(int64(len(data)))
	}
	_, err = s.Finish(ctx)
	must(t, err)
	must(t, r.Finish())
	checkFiles(t, r.Dir.Name(), files)
}

func TestATransferGoesThroughPipes(t *testing.T) {
	r, d := pinnedPair(t, ReceiveOptions{})
	files := content(3, sizes...)
	s, err := NewSender(t.Context(), SendOptions{Streams: 2, Dial: func(ctx context.Context) (net.Conn, error) {
		toReceiver, fromSender, err := os.Pipe() // as an ssh has them
		if err != nil {
			return nil, err
		}
		toSender, fromReceiver, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		raw, err := net.Dial("tcp", r.Addresses()[0])
		if err != nil {
			return nil, err
		}
		there := PipeConn(toReceiver, fromReceiver)
		go func() { _, _ = io.Copy(raw, there); raw.Close() }()
		go func() { _, _ = io.Copy(there, raw); there.Close() }()
		return Client(ctx, PipeConn(toSender, fromSender), d.Config)
	}})
	must(t, err)
	_, err = sendAll(t.Context(), s, files)
	must(t, err)
	must(t, r.Finish())
	checkFiles(t, r.Dir.Name(), files)
}
