package pages

import (
	"bytes"
	"testing"

	"cucriu/internal/kit/proc"
)

// TestPiecesAreTheMemory: what they say, read from the files, is the memory that was stored, and all else is 0.
func TestPiecesAreTheMemory(t *testing.T) {
	const at = 0x10000000
	memory := make([]byte, 12*ChunkSize)
	for _, chunk := range []int{1, 2, 3, 7, 11} { // the others are 0
		for i := range ChunkSize {
			memory[chunk*ChunkSize+i] = byte(i*7 + chunk)
		}
	}
	store := func(codec Codec) *Reader {
		t.Helper()
		dir := t.TempDir()
		w, err := Create(dir, "0123456789abcdef", 7, 2)
		if err != nil {
			t.Fatal(err)
		}
		coder, err := newCoder(codec)
		if err != nil {
			t.Fatal(err)
		}
		defer coder.close()
		for i := range len(memory) / ChunkSize {
			chunk := coder.encode(at+uint64(i*ChunkSize), memory[i*ChunkSize:(i+1)*ChunkSize])
			if err := w.Put(i/6, chunk); err != nil { // the first half in one shard, the second in the other
				t.Fatal(err)
			}
		}
		listing, err := w.Finish()
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
		r, err := Open(dir, 7, &listing)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
	all := proc.Range{Start: at, End: at + 12*ChunkSize}
	for _, test := range []struct {
		codec Codec
		moved proc.Range
		want  uint64 // chunks
	}{
		{Raw, proc.Range{}, 5},
		{Raw, proc.Range{Start: at + 2*ChunkSize, End: at + 8*ChunkSize}, 2},
		{Raw, all, 0},
		{Zstd, all, 5}, // no library reads what is compressed
	} {
		if got := store(test.codec).Memory(test.moved); got != test.want*ChunkSize {
			t.Errorf("%+v: it takes %d bytes", test, got)
		}
	}
	for _, r := range []proc.Range{{Start: at, End: at + 12*ChunkSize}, {Start: at + 2*ChunkSize, End: at + 8*ChunkSize}} {
		pieces, files, ok := store(Raw).Pieces(r)
		if !ok || len(pieces) > 3 {
			t.Errorf("%v: %v, %+v: what follows each other is one piece", r, ok, pieces)
		}
		got := make([]byte, r.Size())
		for _, p := range pieces {
			if _, err := files[p.File].ReadAt(got[p.Offset:p.Offset+uint64(p.Size)], int64(p.At)); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, memory[r.Start-at:r.End-at]) {
			t.Errorf("%v: the pieces are not the memory", r)
		}
	}
	if _, _, ok := store(Zstd).Pieces(proc.Range{Start: at, End: at + 12*ChunkSize}); ok {
		t.Error("what is compressed has pieces")
	}
}
