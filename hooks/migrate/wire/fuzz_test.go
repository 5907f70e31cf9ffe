package wire

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"testing"

	"github.com/klauspost/compress/s2"
	"pgregory.net/rapid"

	"cucriu/criuutil/pages"
)

// repaired is a stream in which the checksums are right, as far as it consists of frames. No
// fuzzer finds them.
func repaired(stream []byte) []byte {
	stream = bytes.Clone(stream)
	for rest := stream; len(rest) >= headerSize; {
		stored := binary.LittleEndian.Uint32(rest[20:])
		if uint64(stored) > uint64(len(rest)-headerSize) {
			break
		}
		followed := rest[headerSize : headerSize+stored]
		f := frame{codec: pages.Codec(rest[1]), size: binary.LittleEndian.Uint32(rest[16:])}
		if content, _ := (&unpacker{}).unpack(&f, rest, followed); len(content) <= chunkSize {
			binary.LittleEndian.PutUint32(rest[24:], checksum(content, rest))
		}
		rest = rest[headerSize+stored:]
	}
	return stream
}

// FuzzFrames checks that whatever a sender says, only plain files are made, in one directory and
// within the bounds, and that a transfer that is complete has all that was announced.
func FuzzFrames(f *testing.F) {
	text := bytes.Repeat([]byte("the same again; "), 64)
	all := [][]byte{
		named(0, "core-1.img"), raw(0, 0, "content"), closed(0, 7), finished(1, 7),
		named(1, "pages"), encoded(frame{kind: chunkFrame, file: 1, offset: 3, size: 9}, nil), closed(1, 12), encoded(frame{kind: aliveFrame}, nil),
		encoded(frame{kind: chunkFrame, codec: pages.S2, size: 1024}, s2.Encode(nil, text)),
		raw(1, 0, "abc"), named(1, "../x"), named(2, "a"), named(3, "b"), raw(0, 1<<40, "far"),
	}
	f.Add(bytes.Join(all[:4], nil))
	f.Add(bytes.Join([][]byte{all[4], all[5], all[6], all[9], all[7], finished(1, 12)}, nil))
	f.Add(bytes.Join([][]byte{all[0], all[8], closed(0, 1024), finished(1, 1024)}, nil))
	for _, one := range all {
		f.Add(append(bytes.Clone(all[0]), one...))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		dir := t.TempDir()
		root, err := os.OpenRoot(dir)
		must(t, err)
		defer root.Close()
		const most, files = 4096, 3
		r := NewReceiver(ReceiveOptions{Dir: root, MaxBytes: most, MaxFiles: files})
		err = serveAll(r, repaired(said))
		finished := r.Finish()
		if (err == nil) != (finished == nil) {
			t.Fatalf("served with %v, finished with %v", err, finished)
		}
		entries, err := os.ReadDir(dir)
		must(t, err)
		if len(entries) > files {
			t.Fatalf("%d files", len(entries))
		}
		var bytes int64
		for _, e := range entries {
			info, err := e.Info()
			must(t, err)
			bytes += info.Size()
			if checkName(e.Name()) != nil || info.Mode() != 0o600 || info.Size() > most {
				t.Fatalf("%q, %v, %d bytes", e.Name(), info.Mode(), info.Size())
			}
		}
		if finished == nil && bytes != r.received.Load() {
			t.Fatalf("%d bytes came of %d", r.received.Load(), bytes)
		}
	})
}

// FuzzFrame checks that a frame is written as it was read.
func FuzzFrame(f *testing.F) {
	f.Add(named(0, "a")[:headerSize])
	f.Add(raw(7, 1<<40, "content")[:headerSize])
	f.Add(finished(1, 2))
	f.Fuzz(func(t *testing.T, header []byte) {
		if len(header) < headerSize {
			return
		}
		got, err := parseFrame(header)
		if err != nil {
			return
		}
		if got.stored > chunkSize || got.offset < 0 || got.offset+int64(got.size) > 1<<62 {
			t.Fatalf("accepted %+v", got)
		}
		again := make([]byte, headerSize)
		got.put(again, nil)
		if !bytes.Equal(again[:headerSize-4], header[:headerSize-4]) {
			t.Fatalf("read % x, written % x", header, again)
		}
	})
}

// FuzzAnswer checks that an answer is written as it was read, and is bounded.
func FuzzAnswer(f *testing.F) {
	for _, a := range []answer{
		{kind: welcomeAnswer, count: transferVersion},
		{kind: ackAnswer, count: 12},
		{kind: failedAnswer, reason: "no space left on device", noSpace: true},
	} {
		f.Add(a.encode())
	}
	f.Add(bytes.Repeat([]byte{0xff}, 100))
	f.Fuzz(func(t *testing.T, data []byte) {
		reader := bytes.NewReader(data)
		a, err := readAnswer(reader)
		if err != nil {
			return
		}
		rest, err := io.ReadAll(reader)
		must(t, err)
		if again := a.encode(); len(a.reason) > maxReason || !bytes.Equal(append(again, rest...), data) {
			t.Fatalf("read % x as %+v, written % x", data, a, again)
		}
	})
}

// Extents are compared with a list of all bytes.
func TestExtentsKnowWhatIsThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 40
		var x extents
		var there [size]bool
		for range rapid.IntRange(1, 30).Draw(t, "parts") {
			start := rapid.Int64Range(0, size-1).Draw(t, "start")
			part := extent{start, rapid.Int64Range(start+1, size).Draw(t, "end")}
			var missing int64
			for i := part.start; i < part.end; i++ {
				if !there[i] {
					missing++
				}
				there[i] = true
			}
			if got := x.missing(part); got != missing {
				t.Fatalf("%v has all but %d of %v, not %d", x, got, part, missing)
			}
			x.add(part)
		}
		var want extents
		for i := range int64(size) {
			if !there[i] {
				continue
			}
			if last := len(want) - 1; last >= 0 && want[last].end == i {
				want[last].end++
			} else {
				want = append(want, extent{i, i + 1})
			}
		}
		if len(x) != len(want) || x.end() != want.end() {
			t.Fatalf("%v instead of %v", x, want)
		}
		for i := range x {
			if x[i] != want[i] {
				t.Fatalf("%v instead of %v", x, want)
			}
		}
	})
}
