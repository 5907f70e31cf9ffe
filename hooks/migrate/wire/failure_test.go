package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAFullDiskReachesTheSender(t *testing.T) {
	o := ReceiveOptions{MaxBytes: 1 << 30, MaxFiles: 10}
	dir := t.TempDir()
	onFullDisk := os.Getuid() == 0
	if onFullDisk {
		must(t, syscall.Mount("none", dir, "tmpfs", 0, "size=4m"))
		defer func() { must(t, syscall.Unmount(dir, 0)) }()
	}
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	o.Dir = root
	l, d := pinnedPair(t)
	r := receive(t, l, o)
	if !onFullDisk {
		r.write = func(f *os.File, data []byte, offset int64) (int, error) {
			if offset > 4<<20 {
				return 0, &os.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
			}
			return f.WriteAt(data, offset)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := NewSender(ctx, SendOptions{Dial: d.Dial})
	must(t, err)
	_, err = sendAll(ctx, s, map[string][]byte{"large.img": bytes.Repeat([]byte("no zeros"), 8<<20)})
	var remote *RemoteError
	if !errors.As(err, &remote) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "large.img: no space left on device") {
		t.Errorf("sent with %v", err)
	}
	if err := r.Wait(ctx); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("waited with %v", err)
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
		_ = s.Range(t.Context(), "a", reader, 0, 10)
		if _, err := s.Finish(t.Context()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("finished with %v", err)
		}
	}
}

type badDisk struct{}

func (badDisk) ReadAt([]byte, int64) (int, error) { return 0, syscall.EIO }

func TestMistakesOfTheCallerAreRefused(t *testing.T) {
	l := newLocal(t, ReceiveOptions{})
	for _, o := range []SendOptions{{}, {Dial: l.dial, Streams: maxStreams + 1}, {Dial: l.dial, Streams: -1}, {Dial: l.dial, BytesPerSecond: -1}, {Dial: l.dial, Codec: 9}} {
		if _, err := NewSender(t.Context(), o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
	s, err := NewSender(t.Context(), SendOptions{Dial: l.dial})
	must(t, err)
	for _, name := range []string{"", "a/b", "..", strings.Repeat("a", 202)} {
		if s.Range(t.Context(), name, strings.NewReader("x"), 0, 1) == nil || s.Close(t.Context(), name, 0) == nil {
			t.Errorf("the name %q was taken", name)
		}
	}
	must(t, s.Close(t.Context(), "a", 0))
	if s.Close(t.Context(), "a", 0) == nil || s.Close(t.Context(), "b", -1) == nil || s.Range(t.Context(), "b", nil, -1, 1) == nil || s.Range(t.Context(), "b", nil, 0, -1) == nil ||
		s.Range(t.Context(), "b", nil, maxOffset, 1) == nil {
		t.Error("a wrong part or size was taken")
	}
	_, err = s.Finish(t.Context())
	must(t, err)
	if s.Range(t.Context(), "c", strings.NewReader("x"), 0, 1) == nil {
		t.Error("a part was taken after the end")
	}
}

// The connection over which the transfer failed may break before the sender is told.
func TestALateConnectionIsToldOfTheFailure(t *testing.T) {
	l := newLocal(t, ReceiveOptions{})
	if err := serveAll(l.receiver, raw(0, 0, "x")); err == nil || !strings.Contains(err.Error(), "file 0 has no name") {
		t.Fatalf("served with %v", err)
	}
	s, err := NewSender(t.Context(), SendOptions{Dial: l.dial})
	must(t, err)
	var remote *RemoteError
	if _, err := s.Finish(t.Context()); !errors.As(err, &remote) || !strings.Contains(err.Error(), "file 0 has no name") {
		t.Fatalf("finished with %v", err)
	}
}

func TestASenderThatIsRefusedGivesUp(t *testing.T) {
	l, d := pinnedPair(t)
	stranger, err := NewIdentity()
	must(t, err)
	d.Config = d.Config.Clone()
	d.Config.Certificates = []tls.Certificate{stranger.certificate}
	s, err := NewSender(t.Context(), SendOptions{Dial: d.Dial, Patience: 500 * time.Millisecond})
	must(t, err)
	if _, err := s.Finish(t.Context()); err == nil || !strings.Contains(err.Error(), "no data connection") {
		t.Fatalf("finished with %v", err)
	}
	if l.Refused()["not pinned"] == 0 {
		t.Errorf("refused %v", l.Refused())
	}
}
