package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
func serve(t *testing.T, r *Receiver, said []byte) (told *RemoteError, err error) {
	t.Helper()
	ours, theirs := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- r.Serve(context.Background(), theirs) }()
	defer ours.Close()
	go func() { _, _ = ours.Write(said) }()
	for {
		a, err := readAnswer(ours)
		if err == nil && a.kind != failedAnswer {
			continue
		}
		if err == nil {
			told = &RemoteError{a.reason, a.noSpace}
		}
		ours.Close()
		return told, <-served
	}
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
			told, err := serve(t, r, bytes.Join(c.frames, nil))
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
