package wire

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"cucriu/criuutil/pages"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pinnedPair returns two identities that know each other, as a listener and a dialer.
func pinnedPair(t testing.TB) (*Listener, *Dialer) {
	t.Helper()
	receiver, err := NewIdentity()
	must(t, err)
	sender, err := NewIdentity()
	must(t, err)
	server, err := receiver.ServerConfig(sender.Fingerprint())
	must(t, err)
	client, err := sender.ClientConfig(receiver.Fingerprint())
	must(t, err)
	l, err := Listen(t.Context(), ListenOptions{Bind: []string{"127.0.0.1"}, Config: server})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l, &Dialer{Addresses: l.Addresses(), Config: client}
}

// receiving is a receiver that serves all connections of a listener.
type receiving struct {
	*Receiver
	dir    string
	serves sync.WaitGroup
}

func receive(t testing.TB, l *Listener, o ReceiveOptions) *receiving {
	t.Helper()
	r := &receiving{dir: t.TempDir()}
	if o.Dir == nil {
		root, err := os.OpenRoot(r.dir)
		must(t, err)
		t.Cleanup(func() { root.Close() })
		o.Dir = root
	}
	r.Receiver = NewReceiver(o)
	ctx, cancel := context.WithCancel(context.Background())
	r.serves.Go(func() {
		for {
			conn, err := l.Accept(ctx)
			if err != nil {
				return
			}
			r.serves.Go(func() { _ = r.Serve(ctx, conn) })
		}
	})
	t.Cleanup(func() {
		cancel()
		r.serves.Wait()
	})
	return r
}

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

// sendAll sends files, each from a goroutine of its own.
func sendAll(ctx context.Context, s *Sender, files map[string][]byte) (Totals, error) {
	errs := make(chan error, len(files))
	for name, data := range files {
		go func() {
			err := s.Range(ctx, name, bytes.NewReader(data), 0, int64(len(data)))
			if err == nil {
				err = s.Close(ctx, name, int64(len(data)))
			}
			errs <- err
		}()
	}
	for range files {
		if err := <-errs; err != nil {
			return Totals{}, err
		}
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

var sizes = []int{0, 1, 4095, chunkSize - 1, chunkSize, chunkSize + 1, 17<<20 + 12345, 5 << 20}

func TestFilesArriveAsTheyWere(t *testing.T) {
	for _, codec := range []pages.Codec{pages.Zero, pages.Raw, pages.S2, pages.Zstd} {
		t.Run(codec.String(), func(t *testing.T) {
			l, d := pinnedPair(t)
			files := content(1, sizes...)
			var received, sent int64
			r := receive(t, l, ReceiveOptions{MaxBytes: total(files), MaxFiles: len(files), Progress: func(n int64) { received = max(received, n) }})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			s, err := NewSender(ctx, SendOptions{Dial: d.Dial, Codec: codec, Progress: func(n int64) { sent = n }})
			must(t, err)
			totals, err := sendAll(ctx, s, files)
			must(t, err)
			must(t, r.Wait(ctx))
			must(t, r.Finish())
			checkFiles(t, r.dir, files)
			if totals.Files != len(files) || totals.Bytes != total(files) || totals.Resent != 0 || totals.Connections < 1 || totals.Holes == 0 {
				t.Errorf("totals %+v", totals)
			}
			if sent != totals.Bytes || received != totals.Bytes {
				t.Errorf("progress ended at %d and %d of %d", sent, received, totals.Bytes)
			}
			if plain := totals.Bytes - totals.Holes; codec >= pages.Zstd && totals.Sent > plain*9/10 || totals.Sent > plain+plain/100+4096 {
				t.Errorf("%d bytes were sent for %d", totals.Sent, plain)
			}
		})
	}
}
