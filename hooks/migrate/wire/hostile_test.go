package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"cucriu/criuutil/pages"
)

// encoded is a frame as a sender that can do anything would send it.
func encoded(f frame, followed []byte) []byte {
	data := append(make([]byte, headerSize), followed...)
	f.stored = uint32(len(followed))
	f.put(data, followed)
	return data
}

func named(number uint32, name string) []byte {
	return encoded(frame{kind: nameFrame, file: number}, []byte(name))
}

func raw(number uint32, offset int64, content string) []byte {
	return encoded(frame{kind: chunkFrame, codec: pages.Raw, file: number, offset: offset, size: uint32(len(content))}, []byte(content))
}

func closed(number uint32, size int64) []byte {
	return encoded(frame{kind: closedFrame, file: number, offset: size}, nil)
}

func finished(files uint32, bytes int64) []byte {
	return encoded(frame{kind: finishFrame, size: files, offset: bytes}, nil)
}

// bomb is a compressed chunk that says it has other than its real size.
func bomb(codec pages.Codec, compressed []byte, size uint32) []byte {
	return encoded(frame{kind: chunkFrame, codec: codec, size: size}, compressed)
}

// changed is a good frame with one byte changed.
func changed(frame []byte, at int) []byte {
	frame[at] ^= 1
	return frame
}

// serve lets a receiver serve what a hostile sender says. It returns what became of it, and what
// the sender was told.
func serve(t *testing.T, r *Receiver, said []byte) (err error, told *RemoteError) {
	t.Helper()
	ours, theirs := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- r.Serve(context.Background(), theirs) }()
	answers := make(chan *RemoteError, 1)
	go func() {
		for {
			a, err := readAnswer(ours)
			if err != nil || a.kind == failedAnswer {
				if err == nil {
					answers <- &RemoteError{a.reason, a.noSpace}
				}
				close(answers)
				ours.Close()
				return
			}
		}
	}()
	_, _ = ours.Write(said)
	_ = ours.SetWriteDeadline(time.Now()) // both goroutines close their end
	select {
	case told = <-answers:
	case <-time.After(100 * time.Millisecond):
		ours.Close()
		told = <-answers
	}
	return <-served, told
}

func TestWhatNoSenderSendsIsRefused(t *testing.T) {
	zeros1M := make([]byte, chunkSize)
	z, err := zstd.NewWriter(nil)
	must(t, err)
	defer z.Close()
	zstdBomb := z.EncodeAll(make([]byte, 64<<20), nil)
	s2Huge := binary.AppendUvarint(nil, math.MaxUint32)

	for name, c := range map[string]struct {
		frames [][]byte
		says   string
	}{
		"a kind that is none":          {[][]byte{encoded(frame{kind: 9}, nil)}, "a frame that nobody sends"},
		"the kind 0":                   {[][]byte{make([]byte, headerSize)}, "a frame that nobody sends"},
		"bits for later":               {[][]byte{changed(raw(0, 0, "x"), 2)}, "a frame that nobody sends"},
		"an empty chunk":               {[][]byte{raw(0, 0, "")}, "a frame that nobody sends"},
		"a chunk too large":            {[][]byte{raw(0, 0, string(zeros1M)+"x")}, "a frame that nobody sends"},
		"a chunk of 4 GiB":             {[][]byte{bytes.Repeat([]byte{0xff}, headerSize)}, "a frame that nobody sends"},
		"a negative offset":            {[][]byte{raw(0, -1, "x")}, "a frame that nobody sends"},
		"the largest offset":           {[][]byte{raw(0, math.MaxInt64, "x")}, "a frame that nobody sends"},
		"a codec that is none":         {[][]byte{encoded(frame{kind: chunkFrame, codec: 77, size: 1}, []byte("x"))}, "a frame that nobody sends"},
		"zeros with content":           {[][]byte{encoded(frame{kind: chunkFrame, codec: pages.Zero, size: 1}, []byte("x"))}, "a frame that nobody sends"},
		"a chunk that got larger":      {[][]byte{bomb(pages.Zstd, []byte("xxxx"), 2)}, "a frame that nobody sends"},
		"a sign of life with content":  {[][]byte{encoded(frame{kind: aliveFrame}, []byte("x"))}, "a frame that nobody sends"},
		"a changed byte of a chunk":    {[][]byte{named(0, "a"), changed(raw(0, 0, "content"), headerSize+3)}, "damaged"},
		"a changed offset":             {[][]byte{named(0, "a"), changed(raw(0, 0, "content"), 8)}, "damaged"},
		"a changed number":             {[][]byte{named(0, "a"), named(1, "b"), changed(raw(0, 0, "content"), 4)}, "damaged"},
		"a changed name":               {[][]byte{changed(named(0, "abc"), headerSize)}, "damaged"},
		"a changed size":               {[][]byte{named(0, "a"), changed(closed(0, 8), 8)}, "damaged"},
		"no zstd":                      {[][]byte{named(0, "a"), bomb(pages.Zstd, []byte("no zstd"), 4096)}, "damaged"},
		"no s2":                        {[][]byte{named(0, "a"), bomb(pages.S2, []byte("\x05no s2"), 4096)}, "damaged"},
		"a bomb of zstd":               {[][]byte{named(0, "a"), bomb(pages.Zstd, zstdBomb, chunkSize)}, "damaged"},
		"a bomb of s2":                 {[][]byte{named(0, "a"), bomb(pages.S2, s2Huge, chunkSize)}, "damaged"},
		"less than was said":           {[][]byte{named(0, "a"), bomb(pages.S2, s2.Encode(nil, zeros1M[:5000]), 6000)}, "5000 bytes, not 6000"},
		"a chunk before its name":      {[][]byte{raw(0, 0, "x"), named(0, "a")}, "file 0 has no name"},
		"a size before the name":       {[][]byte{closed(3, 1)}, "file 3 has no name"},
		"two names":                    {[][]byte{named(0, "a"), named(0, "b")}, `file 0 is a, and then "b"`},
		"two numbers":                  {[][]byte{named(0, "a"), named(1, "a")}, "file exists"},
		"more files":                   {[][]byte{named(0, "a"), named(1, "b"), named(2, "c"), named(3, "d")}, "more than 3 files"},
		"more bytes":                   {[][]byte{named(0, "a"), raw(0, 999, "xx")}, "more than 1000 bytes"},
		"more bytes in two files":      {[][]byte{named(0, "a"), named(1, "b"), raw(0, 0, strings.Repeat("x", 600)), raw(1, 0, strings.Repeat("x", 600))}, "more than 1000 bytes"},
		"a hole beyond":                {[][]byte{named(0, "a"), encoded(frame{kind: chunkFrame, offset: 1 << 40, size: chunkSize}, nil)}, "more than 1000 bytes"},
		"a size beyond":                {[][]byte{named(0, "a"), closed(0, 1<<40)}, "more than 1000 bytes"},
		"a chunk beyond the size":      {[][]byte{named(0, "a"), closed(0, 5), raw(0, 3, "xyz")}, "a chunk ends at 6, and the file has 5 bytes"},
		"a size within a chunk":        {[][]byte{named(0, "a"), raw(0, 3, "xyz"), closed(0, 5)}, "5 bytes, and a chunk ended at 6"},
		"two sizes":                    {[][]byte{named(0, "a"), closed(0, 5), closed(0, 6)}, "5 bytes, and then 6"},
		"an end with a file open":      {[][]byte{named(0, "a"), raw(0, 0, "xyz"), finished(1, 3)}, "the sender has not said that it is complete"},
		"an end with bytes missing":    {[][]byte{named(0, "a"), raw(0, 0, "xyz"), closed(0, 5), finished(1, 5)}, "2 of 5 bytes are missing"},
		"an end with fewer files":      {[][]byte{named(0, "a"), closed(0, 0), finished(0, 0)}, "1 files with 0 bytes came, and 0 with 0 were sent"},
		"an end with more bytes":       {[][]byte{finished(0, 1)}, "0 files with 0 bytes came, and 0 with 1 were sent"},
		"a file in another directory":  {[][]byte{named(0, "../a")}, "not the name"},
		"the directory above":          {[][]byte{named(0, "..")}, "not the name"},
		"the directory":                {[][]byte{named(0, ".")}, "not the name"},
		"an absolute path":             {[][]byte{named(0, "/etc/passwd")}, "not the name"},
		"a file below":                 {[][]byte{named(0, "below/a")}, "not the name"},
		"a hidden file":                {[][]byte{named(0, ".a")}, "not the name"},
		"an option":                    {[][]byte{named(0, "-rf")}, "not the name"},
		"a zero in the name":           {[][]byte{named(0, "a\x00b")}, "not the name"},
		"a line end after the name":    {[][]byte{named(0, "a\n")}, "not the name"},
		"a terminal's sequence":        {[][]byte{named(0, "\x1b[2J")}, `\x1b[2J`},
		"a name too long":              {[][]byte{named(0, strings.Repeat("a", 202))}, "a frame that nobody sends"},
		"no name":                      {[][]byte{named(0, "")}, "a frame that nobody sends"},
		"a link that leads elsewhere":  {[][]byte{named(0, "link")}, "file exists"},
		"a link that leads nowhere":    {[][]byte{named(0, "dangling")}, "file exists"},
		"a directory":                  {[][]byte{named(0, "below")}, "file exists"},
		"a file that was there before": {[][]byte{named(0, "there")}, "file exists"},
	} {
		t.Run(name, func(t *testing.T) {
			above := t.TempDir()
			dir := filepath.Join(above, "dir")
			must(t, os.MkdirAll(filepath.Join(dir, "below"), 0o700))
			must(t, os.WriteFile(filepath.Join(above, "victim"), []byte("precious"), 0o600))
			must(t, os.WriteFile(filepath.Join(dir, "there"), []byte("precious"), 0o600))
			must(t, os.Symlink("../victim", filepath.Join(dir, "link")))
			must(t, os.Symlink("../new", filepath.Join(dir, "dangling")))
			root, err := os.OpenRoot(dir)
			must(t, err)
			defer root.Close()
			r := NewReceiver(ReceiveOptions{Dir: root, MaxBytes: 1000, MaxFiles: 3})
			if strings.Contains(name, "bomb") || strings.Contains(name, "zstd") || strings.Contains(name, "s2") || name == "less than was said" {
				r.options.MaxBytes = 1 << 30
			}
			err, told := serve(t, r, bytes.Join(c.frames, nil))
			if err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, errBroken) {
				t.Fatalf("served with %v", err)
			}
			if told == nil || !strings.Contains(told.Reason, c.says) {
				t.Errorf("the sender was told %+v", told)
			}
			if strings.ContainsAny(told.Error(), "\x1b\x00\n") {
				t.Errorf("%q is not safe to print", told.Error())
			}
			if err := r.Wait(t.Context()); err == nil {
				t.Error("the transfer is complete")
			}
			if err := r.Finish(); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("finished with %v", err)
			}
			for _, victim := range []string{filepath.Join(above, "victim"), filepath.Join(dir, "there")} {
				if data, err := os.ReadFile(victim); err != nil || string(data) != "precious" {
					t.Errorf("%s: %q, %v", victim, data, err)
				}
			}
			if _, err := os.Stat(filepath.Join(above, "new")); err == nil {
				t.Error("a file was made outside")
			}
		})
	}
}

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
	err, told := serve(t, l.receiver, bytes.Join([][]byte{
		named(0, "a"), named(0, "a"), closed(0, 9), raw(0, 6, "ghi"), raw(0, 0, "abcd"), closed(0, 9), raw(0, 2, "cdefg"),
		raw(0, 0, "abcdefghi"), raw(0, 3, "d"), finished(1, 9), raw(0, 0, "too late"), closed(0, 3), finished(7, 7),
	}, nil))
	if err != nil || told != nil {
		t.Fatalf("served with %v, %+v", err, told)
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
	if err, _ := serve(t, l.receiver, said); err == nil || !strings.Contains(err.Error(), "too many separate parts") {
		t.Fatalf("served with %v", err)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	l := newLocal(t, ReceiveOptions{})
	for range maxConnections {
		conn, err := l.dial(t.Context())
		must(t, err)
		defer conn.Close()
		_, err = readAnswer(conn)
		must(t, err)
	}
	ours, theirs := net.Pipe()
	defer ours.Close()
	if err := l.receiver.Serve(t.Context(), theirs); err == nil || !strings.Contains(err.Error(), "connections") {
		t.Fatalf("served with %v", err)
	}
}

// liar is a receiver that says anything.
func liar(says func(conn net.Conn)) func(context.Context) (net.Conn, error) {
	return func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		go says(theirs)
		return ours, nil
	}
}

func TestWhatNoReceiverSaysIsRefused(t *testing.T) {
	welcome := (&answer{kind: welcomeAnswer, count: ProtocolVersion}).encode()
	ack := func(n uint64) []byte { return (&answer{kind: ackAnswer, count: n}).encode() }
	for name, c := range map[string]struct {
		answers [][]byte
		says    string
	}{
		"another version":         {[][]byte{(&answer{kind: welcomeAnswer, count: 7}).encode()}, "version 7"},
		"no welcome":              {[][]byte{ack(0)}, "no welcome"},
		"nonsense":                {[][]byte{bytes.Repeat([]byte{0x55}, 64)}, "what nobody sends"},
		"another welcome":         {[][]byte{welcome, welcome}, "frames acknowledged"},
		"more than was sent":      {[][]byte{welcome, ack(3)}, "3 frames acknowledged"},
		"far more":                {[][]byte{welcome, ack(math.MaxUint64)}, "frames acknowledged"},
		"a failure without words": {[][]byte{welcome, (&answer{kind: failedAnswer}).encode()}, "what nobody sends"},
		"a failure":               {[][]byte{welcome, (&answer{kind: failedAnswer, reason: "bad \x1b[31m luck"}).encode()}, `"bad \x1b[31m luck"`},
		"a long failure":          {[][]byte{welcome, (&answer{kind: failedAnswer, reason: strings.Repeat("x", 5000)}).encode()}, strings.Repeat("x", 1024)},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := NewSender(t.Context(), SendOptions{Streams: 1, Dial: liar(func(conn net.Conn) { _, _ = conn.Write(bytes.Join(c.answers, nil)) })})
			must(t, err)
			_ = s.Range(t.Context(), "a", strings.NewReader("x"), 0, 1)
			if _, err := s.Finish(t.Context()); err == nil || !strings.Contains(err.Error(), c.says) || len(err.Error()) > 1200 {
				t.Errorf("finished with %v", err)
			}
		})
	}
}

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
	if s.Close(t.Context(), "a", 0) == nil || s.Close(t.Context(), "b", -1) == nil || s.Range(t.Context(), "b", nil, -1, 1) == nil || s.Range(t.Context(), "b", nil, 0, -1) == nil {
		t.Error("a wrong part or size was taken")
	}
	_, err = s.Finish(t.Context())
	must(t, err)
	if s.Range(t.Context(), "c", strings.NewReader("x"), 0, 1) == nil {
		t.Error("a part was taken after the end")
	}
}
