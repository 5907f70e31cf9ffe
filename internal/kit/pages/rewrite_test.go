package pages

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// open opens an image for reading.
func (m *image) open(t testing.TB, dir string) *Reader {
	t.Helper()
	files, err := openFiles([]string{dir}, m.pid, &m.listing)
	must(t, err)
	reader, err := newReader(files, m.pid, &m.listing)
	must(t, err)
	return reader
}

// rewriteImage makes an image of which one shard was written by another dump, for another
// process, and one by the rewriting.
func rewriteImage(t testing.TB, a *arena) *image {
	t.Helper()
	earlier, staged := makeImage(t, a, "fedcba9876543210", testPID+2), makeImage(t, a, "00000000000000aa", testPID)
	earlierDir, stagedDir, dir := t.TempDir(), t.TempDir(), t.TempDir()
	earlier.write(t, earlierDir)
	staged.write(t, stagedDir)
	reader := staged.open(t, stagedDir)
	defer reader.Close()
	var pool Pool
	must(t, pool.Add("earlier", earlierDir, earlier.pid, &earlier.listing))
	defer func() { must(t, pool.Close()) }()
	plan := NewPlan(reader, &pool)
	for i, shard := range pool.shards {
		if shard.origin.Shard == 0 {
			plan.exclude(uint32(i))
		}
	}
	rewritten, err := Rewrite(t.Context(), plan, RewriteOptions{Dir: dir, ID: testID, PID: testPID, Workers: 2})
	must(t, err)
	m := staged.clone()
	m.listing = rewritten.Listing
	m.files = make(map[string][]byte)
	for _, name := range m.names() {
		m.files[name], err = os.ReadFile(filepath.Join(dir, name))
		must(t, err)
	}
	if len(rewritten.Linked) != 1 || len(m.names()) != 3 || len(rewritten.Damaged) > 0 {
		t.Fatalf("rewritten: %+v", rewritten)
	}
	return m
}

func TestARewrittenImageIsFilledIn(t *testing.T) {
	a := imageArena(t)
	before := descriptors(t)
	m := rewriteImage(t, a)
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are open, and %d were", after, before)
	}
	dir := t.TempDir()
	m.write(t, dir)
	written, err := m.loadDamaged(t, a, dir)
	must(t, err)
	for i, codec := range imageCodecs {
		if written[i] == (codec == Zero) {
			t.Errorf("chunk %d of codec %v: written %v", i, codec, written[i])
		}
	}
	reader := m.open(t, dir)
	defer reader.Close()
	var read atomic.Int64
	must(t, reader.Verify(t.Context(), 2, func(n int) { read.Add(int64(n)) }))
	if read.Load() == 0 {
		t.Error("nothing was read")
	}
}

// TestEveryByteOfARewrittenImageCounts flips each bit of the headers and the index, and a bit
// of each chunk, linked or not.
func TestEveryByteOfARewrittenImageCounts(t *testing.T) {
	a := imageArena(t)
	m := rewriteImage(t, a)
	dir := t.TempDir()
	m.write(t, dir)
	flipped := func(name string, at int64) string {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
		must(t, err)
		defer f.Close()
		b := make([]byte, 1)
		_, err = f.ReadAt(b, at)
		must(t, err)
		b[0] ^= 1
		_, err = f.WriteAt(b, at)
		must(t, err)
		return name
	}
	for i, name := range m.names() {
		end := int64(headerSize)
		if i == 0 {
			end = m.listing.IndexBytes
		}
		for at := int64(0); at < end; at += 1 + at/64*8 {
			flipped(name, at)
			m.wantRefused(t, a, dir, name)
			flipped(name, at)
		}
	}
	for i, r := range recordsOf(t, m) {
		if r.codec == Zero {
			continue
		}
		name := flipped(m.names()[1+r.shard], r.offset+int64(r.stored)/2)
		written, err := m.loadDamaged(t, a, dir)
		if err == nil || written[i] {
			t.Errorf("chunk %d: %v", i, err)
		}
		reader := m.open(t, dir)
		wantError(t, reader.Verify(t.Context(), 1, func(int) {}), name)
		must(t, reader.Close())
		flipped(name, r.offset+int64(r.stored)/2)
	}
	_, err := m.loadDamaged(t, a, dir)
	must(t, err)
}

// TestAListingThatNamesOtherShardsIsRefused changes where the shards come from: the headers
// of the files say otherwise.
func TestAListingThatNamesOtherShardsIsRefused(t *testing.T) {
	a := imageArena(t)
	whole := rewriteImage(t, a)
	for name, change := range map[string]func(m *image){
		"exchanged":          func(m *image) { slices.Reverse(m.listing.Origins); slices.Reverse(m.listing.ShardBytes) },
		"twice":              func(m *image) { m.listing.Origins[1] = m.listing.Origins[0] },
		"too few":            func(m *image) { m.listing.Origins = m.listing.Origins[:1] },
		"none":               func(m *image) { m.listing.Origins = nil },
		"another dump":       func(m *image) { m.listing.Origins[0].ID = "00000000000000bb" },
		"another process":    func(m *image) { m.listing.Origins[0].PID++ },
		"another shard":      func(m *image) { m.listing.Origins[0].Shard++ },
		"a name that climbs": func(m *image) { m.listing.Origins[0].ID = "../../../../../.." },
		"a negative process": func(m *image) { m.listing.Origins[0].PID = -m.listing.Origins[0].PID },
		"a negative shard":   func(m *image) { m.listing.Origins[0].Shard = -1 },
		"a shard too many":   func(m *image) { m.listing.Origins[0].Shard = maxShards },
		"an earlier version": func(m *image) {
			binary.LittleEndian.PutUint32(m.files[m.names()[0]][8:], version)
			m.seal()
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := whole.clone()
			m.listing.Origins = slices.Clone(m.listing.Origins)
			change(m)
			dir := t.TempDir()
			whole.write(t, dir)
			for file, data := range m.files {
				must(t, os.WriteFile(filepath.Join(dir, file), data, 0o600))
			}
			for i, file := range m.names() { // what is at the other names is of no use
				if _, err := os.Lstat(filepath.Join(dir, file)); err != nil && m.listing.Validate() == nil {
					must(t, os.WriteFile(filepath.Join(dir, file), whole.files[whole.names()[i]], 0o600))
				}
			}
			written, err := m.loadDamaged(t, a, dir)
			if err == nil || slices.Contains(written, true) {
				t.Errorf("error %v, written %v", err, written)
			}
		})
	}
}

// TestAnyMemoryIsRewritten copies memory twice, with changes, and rewrites the second copy
// against the first.
func TestAnyMemoryIsRewritten(t *testing.T) {
	a := newArena(t, 4*ChunkSize)
	before := descriptors(t)
	rapid.Check(t, func(t *rapid.T) {
		base, err := os.MkdirTemp("", "")
		must(t, err)
		defer os.RemoveAll(base)
		ranges := drawRanges(t, a)
		copyTo := func(id string) (dir string, l Listing) {
			dir = filepath.Join(base, id)
			must(t, os.Mkdir(dir, 0o700))
			w, err := Create(dir, id, testPID, rapid.IntRange(1, 3).Draw(t, "shards"))
			must(t, err)
			defer w.Close()
			must(t, Copy(t.Context(), a.Process, ranges, w, rapid.SampledFrom([]Codec{Raw, Zstd, S2}).Draw(t, "codec")))
			l, err = w.Finish()
			must(t, err)
			return dir, l
		}
		firstDir, first := copyTo("00000000000000aa")
		for _, r := range ranges {
			if rapid.Bool().Draw(t, "change") {
				drawContent(t, a.of(r))
			}
		}
		secondDir, second := copyTo("00000000000000bb")
		want := make([]byte, len(a.memory))
		for _, r := range ranges {
			copy(want[r.Start-a.start():], a.of(r))
		}

		files, err := openFiles([]string{secondDir}, testPID, &second)
		must(t, err)
		staged, err := newReader(files, testPID, &second)
		must(t, err)
		defer staged.Close()
		var pool Pool
		must(t, pool.Add("first", firstDir, testPID, &first))
		defer pool.Close()
		options := RewriteOptions{
			Dir: filepath.Join(base, "new"), ID: testID, PID: testPID, Workers: 1,
			Codec: rapid.SampledFrom([]Codec{Zero, Raw, Zstd, S2}).Draw(t, "codec in the store"),
		}
		must(t, os.Mkdir(options.Dir, 0o700))
		rewritten, err := Rewrite(t.Context(), NewPlan(staged, &pool), options)
		must(t, err)
		if rewritten.Listing.Bytes != second.Bytes {
			t.Fatalf("%d bytes of memory: %+v", rewritten.Listing.Bytes, second)
		}
		must(t, os.RemoveAll(firstDir)) // nothing else is needed
		must(t, os.RemoveAll(secondDir))

		a.set(0)
		files, err = openFiles([]string{options.Dir}, testPID, &rewritten.Listing)
		must(t, err)
		reader, err := newReader(files, testPID, &rewritten.Listing)
		must(t, err)
		defer reader.Close()
		must(t, Fill(t.Context(), reader, a.Process, 2))
		if !bytes.Equal(a.memory, want) {
			t.Fatal("the memory is not as it was")
		}
	})
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors are open, and %d were", after, before)
	}
}

// TestARewritingThatFailsSaysWhy: it neither goes on nor leaves a descriptor open.
func TestARewritingThatFailsSaysWhy(t *testing.T) {
	a := imageArena(t)
	m := makeImage(t, a, testID, testPID)
	dir := t.TempDir()
	m.write(t, dir)
	full := errors.New("no room")
	fails := func(int) error { return full }
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	before := descriptors(t)
	for name, c := range map[string]struct {
		ctx   context.Context
		write func(int) error
		want  error
	}{
		"a write":              {t.Context(), fails, full},
		"cancelled":            {cancelled, nil, context.Canceled},
		"a name that is taken": {t.Context(), nil, os.ErrExist},
	} {
		t.Run(name, func(t *testing.T) {
			reader := m.open(t, dir)
			defer reader.Close()
			out := t.TempDir()
			if name == "a name that is taken" {
				must(t, os.WriteFile(filepath.Join(out, NewListing("00000000000000cc", 1).Names(testPID)[1]), nil, 0o600))
			}
			_, err := Rewrite(c.ctx, NewPlan(reader, &Pool{}), RewriteOptions{Dir: out, ID: "00000000000000cc", PID: testPID, Write: c.write})
			if !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are open, and %d were", after, before)
	}
}
