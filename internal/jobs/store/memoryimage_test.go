package store

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/vma"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"cucriu/internal/kit/pagemap"
)

// process is the memory of a process in a dump: the content of its pages, one after the other.
type process struct {
	name  string // "7", or "shmem-7"
	id    uint32 // of its file of pages
	begin uint64 // page
	data  []byte
	areas []*vma.VmaEntry
}

const (
	page     = 4096
	firstRAM = 0x7f0000000 // page
)

// newProcess returns a process with so many MiB of noise.
func newProcess(name string, id uint32, seed uint64, mib int) process {
	return process{name: name, id: id, begin: firstRAM, data: slices.Concat(newMemory(seed, mib<<20/len(newMemory(1, 1)[0]))...)}
}

// every returns each n-th number below a limit.
func every(n, limit int) (pages []int) {
	for i := 0; i < limit; i += n {
		pages = append(pages, i)
	}
	return pages
}

// with returns the process with other content in some pages.
func (p process) with(id uint32, pages ...int) process {
	p.id, p.data = id, bytes.Clone(p.data)
	for _, n := range pages {
		p.data[n*page+n%page]++
	}
	return p
}

// stageMemory writes an image directory of processes without CUDA.
func stageMemory(t testing.TB, dir string, processes ...process) string {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "inventory.img"), []byte("an inventory"), 0o600))
	for _, p := range processes {
		m := pagemap.Map{PagesID: p.id, Entries: []pagemap.Entry{{Address: p.begin * page, Pages: uint64(len(p.data) / page), Flags: 4}}}
		writePagemap(t, filepath.Join(dir, "pagemap-"+p.name+".img"), m)
		must(t, os.WriteFile(filepath.Join(dir, m.PagesName()), p.data, 0o600))
		if !strings.HasPrefix(p.name, "shmem") {
			must(t, os.WriteFile(filepath.Join(dir, "mm-"+p.name+".img"), mmImage(t, p.areas...), 0o600))
		}
	}
	return dir
}

func writePagemap(t testing.TB, path string, m pagemap.Map) {
	t.Helper()
	var b bytes.Buffer
	_, err := m.WriteTo(&b)
	must(t, err)
	must(t, os.WriteFile(path, b.Bytes(), 0o600))
}

// mmImage returns the image of a process's areas.
func mmImage(t testing.TB, areas ...*vma.VmaEntry) []byte {
	t.Helper()
	m := &mm.MmEntry{Vmas: areas}
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); f.Cardinality() == protoreflect.Required {
			m.ProtoReflect().Set(f, f.Default())
		}
	}
	message, err := proto.Marshal(m)
	must(t, err)
	data := binary.LittleEndian.AppendUint32(nil, 0x54564319)
	data = binary.LittleEndian.AppendUint32(data, 0x57492820) // MM_MAGIC
	return append(binary.LittleEndian.AppendUint32(data, uint32(len(message))), message...)
}

func area(begin, pages uint64, prot, flags, status uint32) *vma.VmaEntry {
	return &vma.VmaEntry{
		Start: proto.Uint64(begin * page), End: proto.Uint64((begin + pages) * page), Pgoff: proto.Uint64(0), Shmid: proto.Uint64(0),
		Prot: proto.Uint32(prot), Flags: proto.Uint32(flags), Status: proto.Uint32(status), Fd: proto.Int64(-1),
	}
}

func publishMemory(t testing.TB, s *Store, processes ...process) Checkpoint {
	t.Helper()
	staged := stageMemory(t, filepath.Join(s.dir, "image"), processes...)
	defer os.RemoveAll(staged)
	c, err := s.Publish(t.Context(), staged, goodInfo(t))
	must(t, err)
	return c
}

// memoryOf returns the pages of a process as criu finds them, and how many of them in the parent.
func memoryOf(t testing.TB, dir, name string) (data []byte, parent int) {
	t.Helper()
	m, offsets, pages := openPages(t, dir, name)
	defer pages.Close()
	var base map[uint64]int64
	var basePages *os.File
	if m.ParentBytes() > 0 {
		_, base, basePages = openPages(t, filepath.Join(dir, parentDir), name)
		defer basePages.Close()
	}
	for _, e := range m.Entries {
		for i := range e.Pages {
			at, content := e.Address+i*page, make([]byte, page)
			from, file := offsets, pages
			if e.Flags&pagemap.InParent != 0 {
				from, file, parent = base, basePages, parent+1
			}
			offset, has := from[at]
			if !has {
				t.Fatalf("%s has no page at %#x", file.Name(), at)
			}
			_, err := file.ReadAt(content, offset)
			must(t, err)
			data = append(data, content...)
		}
	}
	return data, parent
}

func openPages(t testing.TB, dir, name string) (pagemap.Map, map[uint64]int64, *os.File) {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "pagemap-"+name+".img"))
	must(t, err)
	defer f.Close()
	m, err := pagemap.Read(f)
	must(t, err)
	offsets, offset := make(map[uint64]int64), int64(0)
	for _, e := range m.Entries {
		if e.Flags&pagemap.InParent == 0 {
			for i := range e.Pages {
				offsets[e.Address+i*page] = offset
				offset += page
			}
		}
	}
	pages, err := os.Open(filepath.Join(dir, m.PagesName()))
	must(t, err)
	if info, err := pages.Stat(); err != nil || info.Size() != offset {
		t.Errorf("%s has %d bytes, want %d: %v", pages.Name(), info.Size(), offset, err)
	}
	return m, offsets, pages
}

// wantMemory fails unless a checkpoint has the memory of the processes, and so many pages of it in
// its parent.
func wantMemory(t testing.TB, c Checkpoint, parent int, processes ...process) {
	t.Helper()
	total := 0
	for _, p := range processes {
		data, n := memoryOf(t, c.Dir, p.name)
		if !bytes.Equal(data, p.data) {
			t.Errorf("%s: the memory of %s is another one", c.Name, p.name)
		}
		total += n
	}
	if total != parent {
		t.Errorf("%s has %d pages in its parent, want %d", c.Name, total, parent)
	}
	if _, err := os.Lstat(filepath.Join(c.Dir, parentDir)); (err == nil) != (parent > 0) {
		t.Errorf("%s: its parent: %v", c.Name, err)
	}
}
