package pages

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"cucriu/internal/kit/proc"
)

// drawRanges draws ranges of the arena, ascending and some of them adjacent, and their
// contents.
func drawRanges(t *rapid.T, a *arena) []proc.Range {
	var ranges []proc.Range
	size := rapid.OneOf(
		rapid.IntRange(1, 40),
		rapid.IntRange(1, 4*pageSize),
		rapid.IntRange(ChunkSize-8, ChunkSize+8),
		rapid.IntRange(1, 3*ChunkSize),
	)
	gap := rapid.OneOf(rapid.Just(0), rapid.IntRange(0, 40), rapid.IntRange(0, ChunkSize))
	at := 0
	for i := range rapid.IntRange(0, 6).Draw(t, "ranges") {
		start := at + gap.Draw(t, fmt.Sprint("gap ", i))
		end := min(start+size.Draw(t, fmt.Sprint("size ", i)), len(a.memory))
		if start >= end {
			break
		}
		r := a.part(start, end)
		drawContent(t, a.of(r))
		ranges = append(ranges, r)
		at = end
	}
	return ranges
}

func drawContent(t *rapid.T, memory []byte) {
	switch content := rapid.SampledFrom([]string{"zeros", "noise", "text", "one byte", "mixed"}).Draw(t, "content"); content {
	case "zeros":
		clear(memory)
	case "noise":
		copy(memory, noise[rapid.IntRange(0, ChunkSize/2).Draw(t, "noise from"):])
	case "text":
		copy(memory, text)
	case "one byte":
		clear(memory)
		memory[rapid.IntRange(0, len(memory)-1).Draw(t, "not zero")] = 1
	case "mixed":
		third := len(memory) / 3
		clear(memory[:third])
		copy(memory[third:], noise[:third])
		copy(memory[2*third:], text)
	}
}

// joined returns ranges with adjacent ones joined.
func joined(ranges []proc.Range) []proc.Range {
	var all []proc.Range
	for _, r := range ranges {
		if n := len(all); n > 0 && all[n-1].End == r.Start {
			all[n-1].End = r.End
		} else {
			all = append(all, r)
		}
	}
	return all
}

// noteWritten notes what a writer says that it has written, which must follow what it said before.
func noteWritten(t *rapid.T, w *Writer) func() map[string]int64 {
	var mutex sync.Mutex
	ends := make(map[string]int64)
	w.Written = func(f *os.File, offset, size int64) {
		mutex.Lock()
		defer mutex.Unlock()
		if offset != ends[f.Name()] {
			t.Errorf("%s: a part at %d follows what ends at %d", f.Name(), offset, ends[f.Name()])
		}
		ends[f.Name()] = offset + size
	}
	return func() map[string]int64 { return ends }
}

func TestWhatIsCopiedIsFilledInAgain(t *testing.T) {
	a := newArena(t, 4*ChunkSize)
	memory, err := os.MkdirTemp("/dev/shm", "pages-")
	must(t, err)
	defer os.Remove(memory)
	dirs := []string{t.TempDir(), memory}
	before := descriptors(t)
	rapid.Check(t, func(t *rapid.T) {
		dir := rapid.SampledFrom(dirs).Draw(t, "dir")
		ranges := drawRanges(t, a)
		codec := rapid.SampledFrom([]Codec{Raw, Zstd, S2}).Draw(t, "codec")
		w, err := Create(dir, testID, testPID, rapid.IntRange(1, 8).Draw(t, "shards"))
		must(t, err)
		defer func() { must(t, w.Remove()); must(t, w.Close()) }()
		durable := rapid.IntRange(0, 20).Draw(t, "durable") == 0
		if durable {
			w.SyncAlong = true
		}
		written := noteWritten(t, w)
		w.Reserve(int64(rapid.IntRange(0, 8*ChunkSize).Draw(t, "reserved")))
		must(t, Copy(t.Context(), a.Process, rapid.Permutation(ranges).Draw(t, "in the order"), w, codec))
		listing, err := w.Finish()
		must(t, err)
		if durable {
			var moved atomic.Int64
			must(t, w.Sync(func() { moved.Add(1) }))
			if moved.Load() < int64(len(w.Files())) {
				t.Errorf("%d files were synced in %d parts", len(w.Files()), moved.Load())
			}
		}
		checkListing(t, w, &listing, ranges)
		for _, f := range w.Files() {
			info, err := f.Stat()
			must(t, err)
			if got := written()[f.Name()]; got != info.Size() {
				t.Errorf("%d of the %d bytes of %s are said to be written", got, info.Size(), f.Name())
			}
		}

		want := slices.Repeat([]byte{0xaa}, len(a.memory)) // around the ranges
		for _, r := range ranges {
			copy(want[r.Start-a.start():], a.of(r))
		}
		a.set(0xaa)
		for _, r := range ranges {
			clear(a.of(r))
		}

		files, err := openFiles([]string{dir}, testPID, &listing)
		must(t, err)
		reader, err := newReader(files, testPID, &listing)
		must(t, err)
		defer func() { must(t, reader.Close()) }()
		if diff := cmp.Diff(joined(ranges), reader.Ranges()); diff != "" {
			t.Fatalf("ranges (-copied +read):\n%s", diff)
		}
		stored := checkChunks(t, a, reader, want, codec)
		if shards := int64(len(listing.ShardBytes)); sum(listing.ShardBytes) != shards*headerSize+stored {
			t.Fatalf("shards of %v bytes for %d bytes of chunks", listing.ShardBytes, stored)
		}
		first := slices.Clone(a.memory)
		part := proc.Range{}
		if len(ranges) > 0 && rapid.Bool().Draw(t, "in two parts") {
			part = rapid.SampledFrom(ranges).Draw(t, "first part")
			copy(first[part.Start-a.start():], want[part.Start-a.start():part.End-a.start()])
		}
		inside, outside := reader.Split(part)
		must(t, Fill(t.Context(), inside, a.Process, rapid.IntRange(1, 8).Draw(t, "workers")))
		if !bytes.Equal(a.memory, first) {
			t.Fatal("the first part of the memory is not as it was, or not alone")
		}
		must(t, Fill(t.Context(), outside, a.Process, rapid.IntRange(1, 8).Draw(t, "workers")))
		if !bytes.Equal(a.memory, want) {
			t.Fatal("the memory is not as it was")
		}
	})
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors are open, and %d were", after, before)
	}
	for _, dir := range dirs {
		wantEmpty(t, dir)
	}
}

// checkListing compares a listing with the files and with the memory that was copied.
func checkListing(t *rapid.T, w *Writer, l *Listing, ranges []proc.Range) {
	must(t, l.Validate())
	if l.Bytes != proc.Total(ranges) {
		t.Fatalf("%d bytes listed, and %d copied", l.Bytes, proc.Total(ranges))
	}
	for i, f := range w.Files() {
		info, err := os.Stat(f.Name())
		must(t, err)
		if want := append([]int64{l.IndexBytes}, l.ShardBytes...)[i]; info.Size() != want || !filePattern.MatchString(info.Name()) {
			t.Fatalf("%s has %d bytes, and is listed with %d", info.Name(), info.Size(), want)
		}
	}
}

// checkChunks checks that zeros are not stored and that only chunks which shrink are
// compressed. It returns how many bytes are stored.
func checkChunks(t *rapid.T, a *arena, reader *Reader, want []byte, codec Codec) (stored int64) {
	buffer := make([]byte, ChunkSize)
	for i := range reader.Chunks() {
		chunk, err := reader.Get(i, buffer)
		must(t, err)
		offset := int(chunk.Address - a.start())
		memory := want[offset : offset+int(chunk.Size)]
		zero := bytes.Count(memory, []byte{0}) == len(memory)
		switch {
		case zero != (chunk.Codec == Zero):
			t.Fatalf("zeros: %v, stored as %v", zero, chunk.Codec)
		case chunk.Codec == Raw && !bytes.Equal(chunk.Data, memory):
			t.Fatal("the memory is stored raw, and not as it was")
		case chunk.Codec != Zero && chunk.Codec != Raw && (chunk.Codec != codec || len(chunk.Data) >= len(memory)):
			t.Fatalf("%d bytes are stored in %d with %v", len(memory), len(chunk.Data), chunk.Codec)
		case chunk.Codec == Zero && len(chunk.Data) > 0:
			t.Fatalf("zeros take %d bytes", len(chunk.Data))
		case codec == Raw && !zero && chunk.Codec != Raw:
			t.Fatalf("stored with %v", chunk.Codec)
		}
		stored += int64(len(chunk.Data))
	}
	return stored
}

func sum(sizes []int64) (total int64) {
	for _, size := range sizes {
		total += size
	}
	return total
}
