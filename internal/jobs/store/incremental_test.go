package store

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/pages"
)

// restored returns the GPU state that a checkpoint holds, as a restore reads it.
func restored(t testing.TB, dir string) memory {
	t.Helper()
	manifest, err := imagedir.ReadManifest(dir)
	must(t, err)
	reader, err := pages.Open(dir, jobPID, manifest.Processes[0].Pages)
	must(t, err)
	defer reader.Close()
	must(t, reader.Verify(t.Context(), 1, func(int) {}))
	var m memory
	for i := range reader.Chunks() {
		chunk, err := reader.Get(i, make([]byte, pages.ChunkSize))
		must(t, err)
		if chunk.Address != baseChunk+uint64(i)*pages.ChunkSize || chunk.Size != pages.ChunkSize {
			t.Fatalf("chunk %d has %d bytes at %#x", i, chunk.Size, chunk.Address)
		}
		m = append(m, bytes.Clone(chunk.Data))
	}
	return m
}

func wantRestored(t testing.TB, c Checkpoint, want memory) {
	t.Helper()
	if got := restored(t, c.Dir); !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("%s does not hold what was dumped", c.Name)
	}
}

// changed returns the memory with other content in some chunks.
func changed(m memory, seed uint64, chunks ...int) memory {
	m = slices.Clone(m)
	for i, fresh := range newMemory(seed, len(chunks)) {
		m[chunks[i]] = fresh
	}
	return m
}

const chunk = pages.ChunkSize

// rest is what the files of a checkpoint other than the pages have.
const rest = 2 << 20

func TestWhatStaysTheSameIsStoredOnce(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	first := newMemory(1, 64)
	first[10] = nil
	a := publish(t, s, 1, first)
	if a.Shared != 0 || a.New != a.Bytes {
		t.Errorf("the first: %d bytes, %d new, %d shared", a.Bytes, a.New, a.Shared)
	}
	for name, second := range map[string]memory{
		"all of it":              first,
		"but for one chunk":      changed(first, 2, 33),
		"moved":                  append(slices.Clone(first[30:]), first[:30]...),
		"reversed, and one less": func() memory { m := slices.Clone(first[1:]); slices.Reverse(m); return m }(),
		"but for zeros":          changed(first, 3, 10),
		"twice":                  append(slices.Clone(first), first...),
	} {
		t.Run(name, func(t *testing.T) {
			b := publish(t, s, 2, second)
			wantRestored(t, b, second)
			if b.New > rest+chunk || b.Shared < 60*chunk {
				t.Errorf("%d bytes, %d new, %d shared", b.Bytes, b.New, b.Shared)
			}
			listed, err := s.Checkpoint(b.Name)
			must(t, err)
			if listed.Shared != b.Shared || listed.New != b.New {
				t.Errorf("%d shared when it was made, and %d listed", b.Shared, listed.Shared)
			}
			must(t, s.Verify(t.Context(), b, 2, nil))
			must(t, s.Remove(b.Name))
		})
	}
	b := publish(t, s, 3, changed(first, 4, 1, 2))
	must(t, s.Remove(a.Name))
	wantWhole(t, s, b.Name)
	wantRestored(t, b, changed(first, 4, 1, 2))
	if again, err := s.Checkpoint(b.Name); err != nil || again.Shared != 0 {
		t.Errorf("it shares %d bytes with nobody: %v", again.Shared, err)
	}
}

// TestAShardOfWhichLittleIsNeededIsNotKept: else a few chunks would keep all of it on the disk.
func TestAShardOfWhichLittleIsNeededIsNotKept(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	first := newMemory(1, 32) // the even chunks in shard 0, the odd ones in shard 1
	publish(t, s, 1, first)
	var odd []int
	for i := 1; i < 32; i += 2 {
		odd = append(odd, i)
	}
	second := changed(first, 2, odd[:10]...) // 6 of 16 are left in shard 1
	b := publish(t, s, 2, second)
	wantRestored(t, b, second)
	wantShards(t, b, dumpID(1)+"-7-0")
	if want := int64(16 * chunk); b.New < want || b.New > want+rest {
		t.Errorf("%d bytes are new", b.New)
	}
	third := changed(first, 3, append(odd[:8:8], 0, 2, 4)...) // 8 of 16: just enough
	wantShards(t, publish(t, s, 3, third), dumpID(1)+"-7-0", dumpID(1)+"-7-1")
}

// TestAnyPartThatStaysTheSameIsSoonSeparate: a third of the state stays the same, spread over
// all of it. That is too little for the shards of the first dump.
func TestAnyPartThatStaysTheSameIsSoonSeparate(t *testing.T) {
	s := openStore(t, quickDir(t))
	m := newMemory(1, 60)
	var change []int
	for i := range m {
		if i%3 > 0 {
			change = append(change, i)
		}
	}
	for id := 1; id <= 5; id++ {
		m = changed(m, uint64(id+100), change...)
		c := publish(t, s, id, m)
		wantRestored(t, c, m)
		if id > 2 && (c.New > 40*chunk+rest || c.Shared < 20*chunk) {
			t.Errorf("%d: %d bytes are new, %d shared", id, c.New, c.Shared)
		}
	}
}

// wantShards fails unless a checkpoint uses these shards of earlier dumps.
func wantShards(t testing.TB, c Checkpoint, want ...string) {
	t.Helper()
	var got []string
	for _, f := range c.Files {
		if name, is := strings.CutPrefix(f.Name, "cucriu-pages-"+dumpID(1)); is {
			got = append(got, dumpID(1)+strings.TrimSuffix(name, ".img"))
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%s uses %q, want %q", c.Name, got, want)
	}
}

func TestADamagedShardIsReportedAndNotShared(t *testing.T) {
	for name, damage := range map[string]func(path, data string) error{
		"a chunk": func(path, data string) error { return flip(path, data, 4096+9*chunk+100) },
		"the header": func(path, data string) error {
			return flip(path, data, 24)
		},
		"its end": func(path, data string) error { return os.Truncate(path, int64(len(data)-1)) },
		"gone":    func(path, _ string) error { return os.Remove(path) },
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, filepath.Join(t.TempDir(), "job"))
			m := newMemory(1, 32)
			a := publish(t, s, 1, m)
			shard := "cucriu-pages-" + dumpID(1) + "-7-1.img"
			must(t, damage(filepath.Join(a.Dir, shard), content(t, a.Dir)[shard]))
			b := publish(t, s, 2, m)
			if len(b.Warnings) != 1 || !strings.Contains(b.Warnings[0], a.Name) || !strings.Contains(b.Warnings[0], shard) {
				t.Errorf("warnings %q", b.Warnings)
			}
			wantRestored(t, b, m)
			must(t, s.Verify(t.Context(), b, 1, nil))
			wantError(t, s.Verify(t.Context(), a, 1, nil), shard)
			if slices.ContainsFunc(b.Files, func(f File) bool { return f.Name == shard }) {
				t.Error("the damaged shard is used")
			}
			if _, err := os.Lstat(filepath.Join(b.Dir, shard)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the damaged shard is linked: %v", err)
			}
		})
	}
}

func TestADamagedDumpIsNotPublished(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	m := newMemory(1, 16)
	a := publish(t, s, 1, m)
	staged := stageImage(t, filepath.Join(t.TempDir(), "image"), 2, m)
	shard := "cucriu-pages-" + dumpID(2) + "-7-1.img"
	must(t, flip(filepath.Join(staged, shard), content(t, staged)[shard], 4096+100))
	_, err := s.Publish(t.Context(), staged, goodInfo(t))
	wantError(t, err, "is damaged")
	wantWhole(t, s, a.Name)
}

// TestAChecksumThatTwoChunksShareIsNoProof stores a chunk that has the checksum of another one.
func TestAChecksumThatTwoChunksShareIsNoProof(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	first := newMemory(1, 16)
	publish(t, s, 1, first)
	second := changed(first, 2, 5)
	collide(second[5], crc32.Checksum(first[5], crc32.MakeTable(crc32.Castagnoli)))
	b := publish(t, s, 2, second)
	wantRestored(t, b, second)
	if len(b.Warnings) > 0 || b.New < chunk || b.New > chunk+rest {
		t.Errorf("%d bytes are new; warnings %q", b.New, b.Warnings)
	}
}

// collide gives data the CRC-32C that is wanted, by its last four bytes.
func collide(data []byte, want uint32) {
	table := crc32.MakeTable(crc32.Castagnoli)
	end := data[len(data)-4:]
	// The checksum is linear in each bit: find which of the 32 to flip.
	var basis [32]struct{ sum, bits uint32 }
	sumWith := func(bits uint32) uint32 {
		copy(end, []byte{byte(bits), byte(bits >> 8), byte(bits >> 16), byte(bits >> 24)})
		return crc32.Checksum(data, table)
	}
	zero := sumWith(0)
	for i := range 32 {
		sum, bits := sumWith(1<<i)^zero, uint32(1)<<i
		for b := 31; b >= 0; b-- {
			if sum>>b&1 == 0 {
				continue
			}
			if basis[b].sum == 0 {
				basis[b].sum, basis[b].bits = sum, bits
				break
			}
			sum, bits = sum^basis[b].sum, bits^basis[b].bits
		}
	}
	left, bits := want^zero, uint32(0)
	for b := 31; b >= 0; b-- {
		if left>>b&1 == 1 {
			left, bits = left^basis[b].sum, bits^basis[b].bits
		}
	}
	sumWith(bits)
}

// immutable is FS_IMMUTABLE_FL.
const immutable = 0x10

// TestWithoutLinksEverythingIsWritten: the kernel gives an immutable file no further name.
func TestWithoutLinksEverythingIsWritten(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	m := newMemory(1, 16)
	a := publish(t, s, 1, m)
	shard := filepath.Join(a.Dir, "cucriu-pages-"+dumpID(1)+"-7-0.img")
	setImmutable(t, shard, true)
	defer setImmutable(t, shard, false)
	b := publish(t, s, 2, m)
	wantRestored(t, b, m)
	wantShards(t, b, dumpID(1)+"-7-1")
	must(t, s.Verify(t.Context(), b, 1, nil))
}

func setImmutable(t testing.TB, path string, on bool) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	must(t, err)
	if flags &^= immutable; on {
		flags |= immutable
	}
	must(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags))
}

func TestChunksAreCompressedInTheStore(t *testing.T) {
	for _, codec := range []pages.Codec{pages.Zstd, pages.S2} {
		t.Run(codec.String(), func(t *testing.T) {
			s, err := Open(filepath.Join(t.TempDir(), "job"), OpenOptions{Codec: codec})
			must(t, err)
			defer s.Close()
			m := newMemory(1, 32)
			for i := range m {
				copy(m[i][100:], bytes.Repeat([]byte{byte(i)}, pages.ChunkSize*3/4))
			}
			a := publish(t, s, 1, m)
			if a.New > 32*chunk/3+rest {
				t.Errorf("%d bytes were written", a.New)
			}
			second := changed(m, 2, 4)
			b := publish(t, s, 2, second)
			if b.New > chunk+rest {
				t.Errorf("%d bytes were written for one chunk", b.New)
			}
			for c, want := range map[*Checkpoint]memory{&a: m, &b: second} {
				must(t, s.Verify(t.Context(), *c, 2, nil))
				listing := readListing(t, c.Dir)
				if listing.Bytes != 32*chunk {
					t.Errorf("%d bytes of memory", listing.Bytes)
				}
				wantDecoded(t, s, *c, want)
			}
		})
	}
}

func readListing(t testing.TB, dir string) *pages.Listing {
	t.Helper()
	manifest, err := imagedir.ReadManifest(dir)
	must(t, err)
	return manifest.Processes[0].Pages
}

// wantDecoded publishes what a compressed checkpoint should hold, uncompressed, and sees that
// every chunk is found to be the same.
func wantDecoded(t testing.TB, s *Store, c Checkpoint, want memory) {
	t.Helper()
	staged := t.TempDir()
	listing := writePages(t, staged, 99, want)
	reader, err := pages.Open(staged, jobPID, &listing)
	must(t, err)
	defer reader.Close()
	var pool pages.Pool
	defer pool.Close()
	must(t, pool.Add(c.Name, c.Dir, jobPID, readListing(t, c.Dir)))
	same := pages.NewPlan(reader, &pool)
	dir := filepath.Join(s.dir, CheckpointsDir) // on the same file system
	got, err := pages.Rewrite(t.Context(), same, pages.RewriteOptions{Dir: dir, ID: dumpID(98), PID: jobPID})
	must(t, err)
	for _, name := range got.Listing.Names(jobPID) {
		must(t, os.Remove(filepath.Join(dir, name)))
	}
	if len(got.Linked) != len(got.Listing.ShardBytes) || len(got.Damaged) > 0 {
		t.Errorf("%s does not hold what was dumped: %+v", c.Name, got)
	}
}

// TestProcessesWithTheSameStateStoreItOnce: replicas of one model have the same weights.
func TestProcessesWithTheSameStateStoreItOnce(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	m := newMemory(1, 32)
	staged := stageImage(t, filepath.Join(t.TempDir(), "image"), 1, m)
	manifest, err := imagedir.ReadManifest(staged)
	must(t, err)
	twin := manifest.Processes[0]
	twin.PID = 9
	w, err := pages.Create(staged, dumpID(1), 9, 1)
	must(t, err)
	for i, data := range changed(m, 2, 3) {
		must(t, w.Put(0, pages.Chunk{Address: uint64(i+5) * pages.ChunkSize, Size: pages.ChunkSize, Codec: pages.Raw, Data: data, Checksum: checksum(data)}))
	}
	listing, err := w.Finish()
	must(t, err)
	must(t, w.Close())
	twin.Pages = &listing
	manifest.Processes = append(manifest.Processes, twin)
	must(t, manifest.Write(staged))
	c, err := s.Publish(t.Context(), staged, goodInfo(t))
	must(t, err)
	if c.New > 33*chunk+rest {
		t.Errorf("%d bytes are new", c.New)
	}
	wantWhole(t, s, c.Name)
	wantRestored(t, c, m)
}

// TestStateThatRepeatsItselfIsStoredOnce: padding and initial values are often the same.
func TestStateThatRepeatsItselfIsStoredOnce(t *testing.T) {
	m := newMemory(1, 4)
	for i := range 40 {
		m = append(m, m[i%4])
	}
	collision := changed(m, 2, 20)
	collide(collision[20], checksum(m[1]))
	for id, want := range []memory{m, collision} {
		s := openStore(t, quickDir(t))
		c := publish(t, s, id+1, want)
		wantRestored(t, c, want)
		if c.New > rest+5*chunk {
			t.Errorf("%d bytes are new", c.New)
		}
		must(t, s.Verify(t.Context(), c, 2, nil))
	}
}

// TestAnyHistoryKeepsEveryCheckpointWhole dumps a job again and again, with state that changes
// at random, while checkpoints are removed. Each is as it was dumped, and what the store keeps
// alive has a bound.
func TestAnyHistoryKeepsEveryCheckpointWhole(t *testing.T) {
	disk := onTmpfs(t, "size=1g")
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp(disk, "")
		must(t, err)
		defer os.RemoveAll(dir)
		s := openStore(t, filepath.Join(dir, "job"))
		defer s.Close()
		chunks := rapid.IntRange(1, 12).Draw(r, "chunks")
		m := newMemory(1, chunks)
		want := make(map[string]memory)
		for dump := 1; dump <= 5; dump++ {
			var change []int
			for i := range chunks {
				if rapid.IntRange(0, 3).Draw(r, fmt.Sprintf("change %d", i)) == 0 {
					change = append(change, i)
				}
			}
			m = changed(m, uint64(dump*100), change...)
			if rapid.Bool().Draw(r, "repeat") {
				m[rapid.IntRange(0, chunks-1).Draw(r, "to")] = m[rapid.IntRange(0, chunks-1).Draw(r, "from")]
			}
			if rapid.Bool().Draw(r, "move") {
				m = append(slices.Clone(m[chunks/3:]), m[:chunks/3]...)
			}
			c, err := s.Publish(t.Context(), stageImage(t, filepath.Join(dir, fmt.Sprint(dump)), dump, m), goodInfo(t))
			must(t, err)
			want[c.Name] = m
			listing := readListing(t, c.Dir)
			var shards int64
			for _, size := range listing.ShardBytes {
				shards += size
			}
			if limit := 2*int64(chunks)*chunk + int64(len(listing.ShardBytes))*4096; shards > limit || len(listing.ShardBytes) > 68 {
				r.Fatalf("%d shards of %d bytes for %d chunks", len(listing.ShardBytes), shards, chunks)
			}
			if all := list(t, s); len(all) > 3 {
				victim := rapid.SampledFrom(all).Draw(r, "remove").Name
				must(t, s.Remove(victim))
				delete(want, victim)
			}
			must(t, os.RemoveAll(filepath.Join(dir, fmt.Sprint(dump))))
		}
		for _, c := range list(t, s) {
			wantRestored(t, c, want[c.Name])
			must(t, s.Verify(t.Context(), c, 2, nil))
		}
	})
}

// TestOnlyTheNamesOfACheckpointAreRemoved: a checkpoint without the file system's help is
// still whole when all others are removed by hand.
func TestOnlyTheNamesOfACheckpointAreRemoved(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	m := newMemory(1, 16)
	var last Checkpoint
	for i := range 4 {
		m = changed(m, uint64(i+10), i)
		last = publish(t, s, i+1, m)
	}
	entries, err := os.ReadDir(s.path(CheckpointsDir))
	must(t, err)
	for _, entry := range slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Name() == last.Name }) {
		must(t, os.RemoveAll(s.checkpointDir(entry.Name())))
	}
	wantWhole(t, s, last.Name)
	wantRestored(t, last, m)
}

// TestStateThatChangedManyTimesUsesFewShards changes a little of the state between many dumps.
func TestStateThatChangedManyTimesUsesFewShards(t *testing.T) {
	s := openStore(t, quickDir(t))
	m := newMemory(1, 80)
	most := 0
	for id := 1; id <= 60; id++ {
		m = changed(m, uint64(id+100), id)
		c := publish(t, s, id, m)
		shards := len(readListing(t, c.Dir).ShardBytes)
		most = max(most, shards)
		if shards > 36 {
			t.Fatalf("dump %d has %d shards", id, shards)
		}
		if id > 1 {
			must(t, s.Remove(nameOf(uint64(id-1))))
		}
		if id%10 == 0 {
			wantRestored(t, c, m)
		}
	}
	if most < 32 {
		t.Errorf("at most %d shards were used: the limit was not reached", most)
	}
}
