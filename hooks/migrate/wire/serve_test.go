package wire

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// serveAll lets a receiver serve what a sender says that hangs up then.
func serveAll(r *Receiver, said []byte) error {
	return r.Serve(context.Background(), &speech{Reader: bytes.NewReader(said)})
}

// speech is a connection from which something comes, and which takes all.
type speech struct {
	net.Conn
	*bytes.Reader
}

func (s *speech) Read(data []byte) (int, error)    { return s.Reader.Read(data) }
func (s *speech) Write(data []byte) (int, error)   { return len(data), nil }
func (s *speech) Close() error                     { return nil }
func (s *speech) SetReadDeadline(time.Time) error  { return nil }
func (s *speech) SetWriteDeadline(time.Time) error { return nil }

func TestATruncatedStreamEndsOnlyItsConnection(t *testing.T) {
	whole := bytes.Join([][]byte{named(0, "a"), raw(0, 0, "content"), closed(0, 7)}, nil)
	for cut := range len(whole) {
		l := newLocal(t, ReceiveOptions{})
		if err := serveAll(l.receiver, whole[:cut]); !errors.Is(err, errBroken) {
			t.Fatalf("cut after %d bytes: %v", cut, err)
		}
		// The next connection sends it again.
		if err := serveAll(l.receiver, append(whole[:len(whole):len(whole)], finished(1, 7)...)); err != nil {
			t.Fatalf("cut after %d bytes, and sent again: %v", cut, err)
		}
		must(t, l.receiver.Finish())
		checkFiles(t, l.receiver.options.Dir.Name(), map[string][]byte{"a": []byte("content")})
	}
}

func TestOrderDoesNotMatterOnceAFileHasItsName(t *testing.T) {
	l := newLocal(t, ReceiveOptions{MaxBytes: 9, MaxFiles: 1})
	err := serveAll(l.receiver, bytes.Join([][]byte{
		named(0, "a"), named(0, "a"), closed(0, 9), raw(0, 6, "ghi"), raw(0, 0, "abcd"), closed(0, 9), raw(0, 2, "cdefg"),
		raw(0, 0, "abcdefghi"), raw(0, 3, "d"), finished(1, 9), raw(0, 0, "too late"), closed(0, 3), finished(7, 7),
	}, nil))
	if err != nil {
		t.Fatalf("served with %v", err)
	}
	must(t, l.receiver.Finish())
	checkFiles(t, l.receiver.options.Dir.Name(), map[string][]byte{"a": []byte("abcdefghi")})
	info, err := l.receiver.options.Dir.Stat("a")
	must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("the file has the mode %v", info.Mode())
	}
}

func TestSeparatePartsAreBounded(t *testing.T) {
	l := newLocal(t, ReceiveOptions{})
	said := named(0, "a")
	for i := range int64(maxExtents + 1) {
		said = append(said, encoded(frame{kind: chunkFrame, offset: 2 * i, size: 1}, nil)...)
	}
	if _, err := serve(t, l.receiver, said); err == nil || !strings.Contains(err.Error(), "too many separate parts") {
		t.Fatalf("served with %v", err)
	}
}
