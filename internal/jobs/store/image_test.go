package store

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cucriu/cudackpt"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/pages"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t testing.TB, err error, why string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Fatalf("error %v, want one with %q", err, why)
	}
}

func checksum(data []byte) uint32 { return crc32.Checksum(data, durable.Castagnoli) }

const (
	jobPID    = 7
	baseChunk = 0x7f0000000000
)

// memory is the GPU state of a job, in chunks. A nil chunk is zero.
type memory [][]byte

// newMemory returns chunks of noise.
func newMemory(seed uint64, chunks int) memory {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	random := rand.NewChaCha8(key)
	m := make(memory, chunks)
	for i := range m {
		m[i] = make([]byte, pages.ChunkSize)
		_, _ = random.Read(m[i])
	}
	return m
}

// dumpID counts up, so that each dump has an id of its own.
func dumpID(n int) string { return fmt.Sprintf("%016x", n) }

// stageImage writes an image directory as a dump does, with the GPU state in two shards.
func stageImage(t testing.TB, dir string, id int, m memory) string {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o700))
	for name, size := range map[string]int{
		"inventory.img": 100, "pstree.img": 60, "core-7.img": 5000, "mm-7.img": 900, "pagemap-7.img": 300,
		"pages-1.img": 1<<20 + 17, "empty.img": 0, "dump.log": 2000,
	} {
		data := newMemory(uint64(id), size/pages.ChunkSize+1)
		var all []byte
		for _, part := range data {
			all = append(all, part...)
		}
		must(t, os.WriteFile(filepath.Join(dir, name), all[:size], 0o600))
	}
	must(t, os.MkdirAll(filepath.Join(dir, "files"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "files", "model.bin"), []byte(fmt.Sprint("a file of the job, of dump ", id)), 0o600))
	listing := writePages(t, dir, id, m)
	uuid, err := cudackpt.ParseUUID("GPU-00000000-0000-0000-0000-00000000000a")
	must(t, err)
	must(t, imagedir.Manifest{
		Version: 1, Created: time.Now().UTC(), DriverVersion: "580.159.04", RootPID: jobPID,
		Processes: []imagedir.Process{{
			PID: jobPID, Name: "python3",
			GPUs:        []cudackpt.GPU{{UUID: uuid, Model: "NVIDIA H200", PCIBusID: "0000:41:00.0"}},
			MemoryBytes: map[cudackpt.UUID]uint64{uuid: listing.Bytes}, Pages: &listing,
		}},
	}.Write(dir))
	return dir
}

func writePages(t testing.TB, dir string, id int, m memory) pages.Listing {
	t.Helper()
	w, err := pages.Create(dir, dumpID(id), jobPID, 2)
	must(t, err)
	for i, data := range m {
		chunk := pages.Chunk{Address: baseChunk + uint64(i)*pages.ChunkSize, Size: pages.ChunkSize, Codec: pages.Zero}
		if data != nil {
			chunk.Codec, chunk.Checksum, chunk.Data = pages.Raw, checksum(data), data
		}
		must(t, w.Put(i%2, chunk))
	}
	listing, err := w.Finish()
	must(t, err)
	must(t, w.Close())
	return listing
}

func goodInfo(t testing.TB) Info {
	t.Helper()
	uuid, err := cudackpt.ParseUUID("GPU-00000000-0000-0000-0000-00000000000a")
	must(t, err)
	return Info{
		CreatedAt: time.Date(2026, 11, 22, 4, 0, 0, 0, time.UTC), Pause: 3 * time.Second, Duration: 5 * time.Second,
		Command: "python3", RootPID: jobPID, Clocks: Clocks{Monotonic: 5e12, Boottime: 6e12},
		Host: "node1", Kernel: "6.12.0", Driver: "580.159.04", Reason: "schedule",
		GPUs: []cudackpt.GPU{{UUID: uuid, Model: "NVIDIA H200", PCIBusID: "0000:41:00.0"}},
	}
}

func openStore(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir, OpenOptions{})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// publish publishes a new dump of the memory, with further processes without CUDA.
func publish(t testing.TB, s *Store, id int, m memory, others ...process) Checkpoint {
	t.Helper()
	staged := filepath.Join(s.dir, "image") // on the same file system
	stageMemory(t, stageImage(t, staged, id, m), others...)
	c, err := s.Publish(t.Context(), staged, goodInfo(t))
	must(t, err)
	must(t, os.RemoveAll(staged))
	return c
}

func list(t testing.TB, s *Store) []Checkpoint {
	t.Helper()
	all, err := s.Checkpoints()
	must(t, err)
	return all
}

func names(all []Checkpoint) string {
	var names []string
	for _, c := range all {
		names = append(names, c.Name)
	}
	return strings.Join(names, " ")
}

// wantWhole fails unless every checkpoint of a store is whole, and their names are these.
func wantWhole(t testing.TB, s *Store, want string) {
	t.Helper()
	all := list(t, s)
	if got := names(all); got != want {
		t.Fatalf("checkpoints %q, want %q", got, want)
	}
	for _, c := range all {
		must(t, s.Check(t.Context(), c))
		must(t, s.Verify(t.Context(), c, 2, nil))
	}
}

// content returns all files below a directory with their content.
func content(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	must(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		all[name] = string(data)
		return err
	}))
	return all
}

func sortedNames(files map[string]string) []string {
	var names []string
	for name := range maps.Keys(files) {
		names = append(names, name)
	}
	return names
}
