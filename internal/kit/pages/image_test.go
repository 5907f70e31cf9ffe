package pages

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cucriu/internal/kit/proc"
)

// image is the memory of a small process in files. It is the same each time, has two shards
// of the same size, and uses every codec.
type image struct {
	listing Listing
	pid     int
	files   map[string][]byte
	chunks  []proc.Range
	want    []byte // what the arena holds
}

// chunkBytes is how many bytes each chunk of an image covers.
const chunkBytes = 2*pageSize + 24

var imageCodecs = []Codec{Raw, Raw, Zero, Zero, Zstd, Zstd, S2, S2}

func makeImage(t testing.TB, a *arena, id string, pid int) *image {
	t.Helper()
	m := &image{pid: pid, files: make(map[string][]byte), want: make([]byte, len(a.memory))}
	dir := t.TempDir()
	w, err := Create(dir, id, pid, 2)
	must(t, err)
	for i, codec := range imageCodecs {
		r := a.part(i*chunkBytes, (i+1)*chunkBytes)
		memory := m.want[i*chunkBytes : (i+1)*chunkBytes]
		switch codec {
		case Raw:
			copy(memory, noise[i*chunkBytes:])
		case Zstd, S2:
			copy(memory, text)
		}
		coder, err := newCoder(codec)
		must(t, err)
		chunk := coder.encode(r.Start, memory)
		if chunk.Codec != codec || (codec != Raw && len(chunk.Data) > chunkBytes/10) {
			t.Fatalf("stored with %v in %d bytes, not with %v", chunk.Codec, len(chunk.Data), codec)
		}
		must(t, w.Put(i%2, chunk))
		coder.close()
		m.chunks = append(m.chunks, r)
	}
	m.listing, err = w.Finish()
	must(t, err)
	must(t, w.Close())
	for _, f := range w.Files() {
		data, err := os.ReadFile(f.Name())
		must(t, err)
		m.files[filepath.Base(f.Name())] = data
	}
	return m
}

// names returns the names of the index and the shards.
func (m *image) names() []string {
	return m.listing.Names(m.pid)
}

// clone returns a copy that shares nothing which a test would damage.
func (m *image) clone() *image {
	c := *m
	c.files = make(map[string][]byte)
	for name, data := range m.files {
		c.files[name] = bytes.Clone(data)
	}
	c.listing.ShardBytes = slices.Clone(m.listing.ShardBytes)
	return &c
}

// seal makes the listing match a damaged index, so that only the contents of the index can
// show the damage.
func (m *image) seal() {
	index := m.files[m.names()[0]]
	m.listing.IndexBytes, m.listing.IndexChecksum = int64(len(index)), checksum(index)
}

func (m *image) write(t testing.TB, dir string) {
	t.Helper()
	for name, data := range m.files {
		must(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
}

// load fills the arena from the files in a directory, with a listing from a manifest, as a
// restore does.
func (m *image) load(t testing.TB, a *arena, dir string) error {
	t.Helper()
	text, err := json.Marshal(m.listing)
	must(t, err)
	var listing Listing
	must(t, json.Unmarshal(text, &listing))
	files, err := openFiles([]string{dir}, m.pid, &listing)
	if err != nil {
		return err
	}
	reader, err := newReader(files, m.pid, &listing)
	if err != nil {
		return err
	}
	defer reader.Close()
	return Fill(t.Context(), reader, a.Process, 1)
}

// untouched is what the arena holds before it is filled.
const untouched = 0x55

// loadDamaged loads a damaged image. It checks that every chunk is either as it was written
// or untouched, and that no file stays open. It returns which chunks were written.
func (m *image) loadDamaged(t testing.TB, a *arena, dir string) (written []bool, err error) {
	t.Helper()
	a.set(untouched)
	before := descriptors(t)
	err = m.load(t, a, dir)
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are open, and %d were", after, before)
	}
	old := bytes.Repeat([]byte{untouched}, chunkBytes)
	for i, r := range m.chunks {
		got := a.of(r)
		same := bytes.Equal(got, m.want[i*chunkBytes:(i+1)*chunkBytes])
		if !same && !bytes.Equal(got, old) {
			t.Errorf("chunk %d is neither as it was written nor as it was before: %v", i, err)
		}
		written = append(written, same)
	}
	if rest := a.memory[len(m.chunks)*chunkBytes:]; len(bytes.Trim(rest, string(rune(untouched)))) > 0 {
		t.Errorf("memory beyond the chunks was written: %v", err)
	}
	return written, err
}

// wantRefused loads files that must be refused before anything is written, with an error
// that says why.
func (m *image) wantRefused(t testing.TB, a *arena, dir, why string) {
	t.Helper()
	written, err := m.loadDamaged(t, a, dir)
	wantError(t, err, why)
	if slices.Contains(written, true) {
		t.Errorf("memory was written: %v", err)
	}
}

func wantError(t testing.TB, err error, why string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("error %v, want one with %q", err, why)
	}
}
