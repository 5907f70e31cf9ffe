package pages

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// imageArena holds an image, and a piece that none of its chunks cover.
func imageArena(t testing.TB) *arena { return newArena(t, len(imageCodecs)*chunkBytes+pageSize) }

func TestAnImageThatIsWholeIsFilledIn(t *testing.T) {
	a := imageArena(t)
	m := makeImage(t, a, testID, testPID)
	dir := t.TempDir()
	m.write(t, dir)
	written, err := m.loadDamaged(t, a, dir)
	must(t, err)
	for i, codec := range imageCodecs {
		if written[i] == (codec == Zero) { // zeros are left out
			t.Errorf("chunk %d of codec %v: written %v", i, codec, written[i])
		}
	}
}

// A file that is cut off, exchanged or replaced is refused before any memory is written.
func TestFilesThatAreNotTheOnesWrittenAreRefused(t *testing.T) {
	a := imageArena(t)
	whole := makeImage(t, a, testID, testPID)
	names := whole.names()
	for name, damage := range map[string]func(t *testing.T, path string) (why string){
		"missing": func(t *testing.T, path string) string { must(t, os.Remove(path)); return "no such file" },
		"empty":   func(t *testing.T, path string) string { must(t, os.Truncate(path, 0)); return "it has 0 bytes" },
		"header only": func(t *testing.T, path string) string {
			must(t, os.Truncate(path, headerSize))
			return "it has 4096 bytes"
		},
		"less by a byte": func(t *testing.T, path string) string {
			must(t, os.Truncate(path, size(t, path)-1))
			return "is damaged: it has"
		},
		"less by a record": func(t *testing.T, path string) string {
			must(t, os.Truncate(path, size(t, path)-recordSize))
			return "is damaged: it has"
		},
		"more by a record": func(t *testing.T, path string) string {
			must(t, os.Truncate(path, size(t, path)+recordSize))
			return "is damaged: it has"
		},
		"a symbolic link": func(t *testing.T, path string) string {
			must(t, os.Rename(path, path+".moved"))
			must(t, os.Symlink(path+".moved", path))
			return "too many levels of symbolic links"
		},
		"a FIFO":      replaced(func(path string) error { return unix.Mkfifo(path, 0o600) }),
		"a directory": replaced(func(path string) error { return os.Mkdir(path, 0o700) }),
		"a device": replaced(func(path string) error { // zeros without end
			return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5)))
		}),
		"zeros of the same size": func(t *testing.T, path string) string {
			bytes := size(t, path)
			must(t, os.Truncate(path, 0))
			must(t, os.Truncate(path, bytes))
			return "is damaged, or belongs to another process or image"
		},
	} {
		for i, file := range names {
			t.Run(fmt.Sprintf("%s/file %d", name, i), func(t *testing.T) {
				dir := t.TempDir()
				whole.write(t, dir)
				why := damage(t, filepath.Join(dir, file))
				whole.wantRefused(t, a, dir, why)
				_, err := whole.loadDamaged(t, a, dir)
				wantError(t, err, file)
			})
		}
	}
}

func replaced(put func(path string) error) func(t *testing.T, path string) string {
	return func(t *testing.T, path string) string {
		must(t, os.Remove(path))
		must(t, put(path))
		return "is not a regular file"
	}
}

func size(t testing.TB, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info.Size()
}

// Headers tell files of the same size that belong to another process or dump.
func TestExchangedFilesAreRefused(t *testing.T) {
	a := imageArena(t)
	whole := makeImage(t, a, testID, testPID)
	names := whole.names()
	foreign := map[string]*image{
		"of another process": makeImage(t, a, testID, testPID+1),
		"of another dump":    makeImage(t, a, "0123456789abcdee", testPID),
	}
	cases := make(map[string]*image)
	exchanged := func(name string, i int, data []byte) {
		m := whole.clone()
		m.files[names[i]] = data
		cases[name] = m
	}
	exchanged("shard 0 twice", 2, whole.files[names[1]])
	exchanged("shard 1 twice", 1, whole.files[names[2]])
	exchanged("a shard as the index", 0, whole.files[names[1]][:whole.listing.IndexBytes])
	for name, other := range foreign {
		for i, file := range other.names() {
			exchanged(fmt.Sprintf("file %d %s", i, name), i, other.files[file])
		}
	}
	swapped := whole.clone()
	swapped.files[names[1]], swapped.files[names[2]] = swapped.files[names[2]], swapped.files[names[1]]
	cases["shards swapped"] = swapped
	for name, m := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			m.write(t, dir)
			m.wantRefused(t, a, dir, "belongs to another process or image")
		})
	}
}

// No byte of the headers or the index may change.
func TestEveryByteOfHeadersAndIndexCounts(t *testing.T) {
	a := imageArena(t)
	whole := makeImage(t, a, testID, testPID)
	dir := t.TempDir()
	whole.write(t, dir)
	for i, name := range whole.names() {
		end := len(whole.files[name])
		if i > 0 {
			end = headerSize
		}
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
		must(t, err)
		for at := 0; at < end; at++ {
			why := "belongs to another process or image"
			if at >= headerSize {
				why = "checksum mismatch"
			} else if at >= 40 && at%61 != 0 {
				continue // only a sample of the zeros in a header
			}
			was := whole.files[name][at]
			_, err := f.WriteAt([]byte{was ^ 0x10}, int64(at))
			must(t, err)
			whole.wantRefused(t, a, dir, why)
			_, err = f.WriteAt([]byte{was}, int64(at))
			must(t, err)
			if t.Failed() {
				t.Fatalf("byte %d of %s", at, name)
			}
		}
		must(t, f.Close())
	}
	must(t, whole.load(t, a, dir)) // everything is undone
}

// A chunk whose data has changed is not written.
func TestDamagedDataIsNotFilledIn(t *testing.T) {
	a := imageArena(t)
	whole := makeImage(t, a, testID, testPID)
	records := recordsOf(t, whole)
	dir := t.TempDir()
	whole.write(t, dir)
	for i, r := range records {
		if r.codec == Zero {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, whole.names()[1+r.shard]), os.O_RDWR, 0)
		must(t, err)
		step := int64(max(1, r.stored/40))
		for at := r.offset; at < r.offset+int64(r.stored); at += step {
			var was [1]byte
			_, err := f.ReadAt(was[:], at)
			must(t, err)
			_, err = f.WriteAt([]byte{was[0] ^ 0x04}, at)
			must(t, err)
			written, err := whole.loadDamaged(t, a, dir)
			// A zstd frame has bits without a meaning. If one of them changes, the chunk
			// still decompresses to the right memory.
			if err != nil || r.codec == Raw {
				wantError(t, err, fmt.Sprintf("the memory at %#x is damaged", r.address))
				if written[i] {
					t.Error("the damaged chunk was written")
				}
			} else if !written[i] {
				t.Error("a chunk was left out without an error")
			}
			_, err = f.WriteAt(was[:], at)
			must(t, err)
			if t.Failed() {
				t.Fatalf("byte %d of chunk %d (%v)", at-r.offset, i, r.codec)
			}
		}
		must(t, f.Close())
	}
}

func recordsOf(t testing.TB, m *image) []record {
	t.Helper()
	x := index(m.files[m.names()[0]][headerSize:])
	must(t, x.check(m.listing.ShardBytes))
	records := make([]record, x.len())
	for i := range records {
		records[i] = x.at(i)
	}
	return records
}

// A shard that is cut off after it was opened and checked is an error, too.
func TestAFileThatShrinksWhileItIsReadIsAnError(t *testing.T) {
	a := imageArena(t)
	m := makeImage(t, a, testID, testPID)
	dir := t.TempDir()
	m.write(t, dir)
	r, err := Open(dir, m.pid, &m.listing)
	must(t, err)
	defer r.Close()
	must(t, os.Truncate(filepath.Join(dir, m.names()[1]), headerSize+pageSize))
	a.set(untouched)
	wantError(t, Fill(t.Context(), r, a.Process, 2), m.names()[1])
	if got := a.of(m.chunks[0]); got[0] != untouched {
		t.Error("the chunk that is cut off was written")
	}
}

// An index with the right checksum that says what cannot be, or what the data contradicts.
func TestAnIndexThatLiesIsRefused(t *testing.T) {
	a := imageArena(t)
	whole := makeImage(t, a, testID, testPID)
	const address, bytes, stored, crc, shard, codec, offset = 0, 8, 12, 16, 20, 22, 24
	u64, u32 := binary.LittleEndian.PutUint64, binary.LittleEndian.PutUint32
	first := recordsOf(t, whole)[0]
	for name, tt := range map[string]struct {
		lie  func(r []byte) // the record of the first chunk, which is raw
		why  string
		fill bool // only the data shows that it is wrong
	}{
		"no size":               {func(r []byte) { u32(r[bytes:], 0) }, "invalid chunk of 0 bytes", false},
		"more than a chunk":     {func(r []byte) { u32(r[bytes:], ChunkSize+1) }, fmt.Sprintf("invalid chunk of %d bytes", ChunkSize+1), false},
		"the largest size":      {func(r []byte) { u32(r[bytes:], 1<<32-1) }, "invalid chunk of 4294967295 bytes", false},
		"into the next chunk":   {func(r []byte) { u32(r[bytes:], chunkBytes+1) }, "invalid chunk of", false},
		"behind the next chunk": {func(r []byte) { u64(r[address:], first.address+chunkBytes) }, "invalid chunk of", false},
		"the highest address":   {func(r []byte) { u64(r[address:], 1<<64-1) }, "at 0xffffffffffffffff", false},
		"nothing stored":        {func(r []byte) { u32(r[stored:], 0) }, "0 stored bytes", false},
		"more stored":           {func(r []byte) { u32(r[stored:], ChunkSize+1) }, fmt.Sprintf("%d stored bytes", ChunkSize+1), false},
		"beyond the shard":      {func(r []byte) { u32(r[stored:], uint32(whole.listing.ShardBytes[0])) }, "stored bytes", false},
		"in no shard":           {func(r []byte) { r[shard] = 2 }, "of shard 2", false},
		"in the index":          {func(r []byte) { r[shard], r[shard+1] = 0xff, 0xff }, "of shard 65535", false},
		"in the header":         {func(r []byte) { u64(r[offset:], headerSize-1) }, "at offset 4095 of shard 0", false},
		"before the file":       {func(r []byte) { u64(r[offset:], 1<<63) }, "at offset -9223372036854775808 of", false},
		"far behind the file":   {func(r []byte) { u64(r[offset:], 1<<63-1) }, "at offset 9223372036854775807 of", false},
		"stored zeros":          {func(r []byte) { r[codec] = byte(Zero) }, "a chunk of zeros has stored bytes", false},

		"less":            {func(r []byte) { u32(r[bytes:], chunkBytes-1) }, "instead of", true},
		"less stored":     {func(r []byte) { u32(r[stored:], chunkBytes-1) }, "instead of", true},
		"another CRC":     {func(r []byte) { r[crc]++ }, "checksum mismatch", true},
		"another shard":   {func(r []byte) { r[shard] = 1 }, "checksum mismatch", true},
		"another offset":  {func(r []byte) { r[offset]++ }, "checksum mismatch", true},
		"zstd":            {func(r []byte) { r[codec] = byte(Zstd) }, "is damaged: ", true},
		"s2":              {func(r []byte) { r[codec] = byte(S2) }, "is damaged: ", true},
		"unknown codec":   {func(r []byte) { r[codec] = 4 }, "unsupported codec 4", true},
		"unmapped memory": {func(r []byte) { u64(r[address:], pageSize) }, unix.EFAULT.Error(), true},
	} {
		t.Run(name, func(t *testing.T) {
			m, dir := whole.clone(), t.TempDir()
			tt.lie(m.files[m.names()[0]][headerSize:])
			m.seal()
			m.write(t, dir)
			m.wantRefused(t, a, dir, tt.why)
			files, err := openFiles([]string{dir}, m.pid, &m.listing)
			must(t, err)
			reader, err := newReader(files, m.pid, &m.listing)
			if (err == nil) != tt.fill {
				t.Errorf("newReader: %v", err)
			}
			if err == nil {
				must(t, reader.Close())
			}
		})
	}
}

// A few bytes that claim to be many are refused before memory is allocated for them.
func TestAChunkThatGrowsBeyondItsSizeIsRefused(t *testing.T) {
	encoder, err := zstd.NewWriter(nil, zstd.WithWindowSize(64<<10), zstd.WithSingleSegment(false))
	must(t, err)
	defer encoder.Close()
	const many = 64 << 20
	for name, tt := range map[string]struct {
		chunk Chunk
		why   string
	}{
		"zstd": {Chunk{Size: ChunkSize, Codec: Zstd, Data: encoder.EncodeAll(make([]byte, many), nil)}, "exceeds"},
		"s2":   {Chunk{Size: ChunkSize, Codec: S2, Data: binary.AppendUvarint(nil, 1<<32-1)}, "4294967295 bytes"},
	} {
		coder := &coder{}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := coder.decode(tt.chunk)
		runtime.ReadMemStats(&after)
		wantError(t, err, tt.why)
		if made := after.TotalAlloc - before.TotalAlloc; made > many/4 {
			t.Errorf("%s: %d bytes were made", name, made)
		}
		coder.close()
	}
}

// The caller's files are counted, and closed with the reader that cannot be made.
func TestTooFewFilesAreRefused(t *testing.T) {
	a := imageArena(t)
	m := makeImage(t, a, testID, testPID)
	dir := t.TempDir()
	m.write(t, dir)
	files, err := openFiles([]string{dir}, m.pid, &m.listing)
	must(t, err)
	_, err = newReader(slices.Clone(files[:2]), m.pid, &m.listing)
	wantError(t, err, "2 files of pages, but 3 were written")
	if files[0].Close() == nil || files[1].Close() == nil || files[2].Close() != nil {
		t.Error("not exactly the files that it was given are closed")
	}
}
