package pages

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cucriu/criuutil/proc"
)

// image is the memory of a process in files, small and the same each time: two
// shards of the same size, in which every codec is used.
type image struct {
	listing Listing
	pid     int
	files   map[string][]byte
	chunks  []proc.Range
	want    []byte // what the arena holds
}

// chunkBytes is how much each chunk of an image covers.
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

// names are the index and the shards.
func (m *image) names() []string {
	return m.listing.Names(m.pid)
}

// clone shares nothing that a test would damage.
func (m *image) clone() *image {
	c := *m
	c.files = make(map[string][]byte)
	for name, data := range m.files {
		c.files[name] = bytes.Clone(data)
	}
	c.listing.ShardBytes = slices.Clone(m.listing.ShardBytes)
	return &c
}

// seal makes the listing agree with a damaged index: only what the index says
// can give it away then.
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

// load fills the arena from the files in a directory, as a restore does, by a
// listing out of a manifest.
func (m *image) load(t testing.TB, a *arena, dir string) error {
	t.Helper()
	text, err := json.Marshal(m.listing)
	must(t, err)
	var listing Listing
	must(t, json.Unmarshal(text, &listing))
	files, err := OpenFiles(dir, m.pid, &listing)
	if err != nil {
		return err
	}
	checked := Check(files, m.pid, &listing)
	reader, err := NewReader(files, m.pid, &listing)
	if (err == nil) != (checked == nil) {
		t.Errorf("Check: %v, NewReader: %v", checked, err)
	}
	if err != nil {
		return err
	}
	defer reader.Close()
	return Fill(t.Context(), reader, a.Process, 1)
}

// untouched is what the arena holds before a fill.
const untouched = 0x55

// loadDamaged loads what is damaged, and checks that every chunk is as it was
// written or as it was before, and that nothing stays open. It returns which
// chunks were written.
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

// wantRefused loads files that must be refused with an error that says why,
// before anything is written.
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
