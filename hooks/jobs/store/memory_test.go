package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/vma"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"cucriu/criuutil/pagemap"
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
	staged := stageMemory(t, filepath.Join(s.Dir(), "image"), processes...)
	defer os.RemoveAll(staged)
	var last Progress
	c, err := s.Publish(t.Context(), staged, goodInfo(t), func(p Progress) { last = p })
	must(t, err)
	if last.Done != last.Total {
		t.Errorf("%d of %d bytes are said to be done", last.Done, last.Total)
	}
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

func TestMemoryThatDidNotChangeIsStoredOnce(t *testing.T) {
	for name, base := range map[string]string{"staged beside": "", "staged in memory": onTmpfs(t, "size=64m")} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, filepath.Join(t.TempDir(), "job"))
			main, shared := newProcess("7", 1, 1, 4), newProcess("shmem-99", 2, 2, 2)
			put := func(processes ...process) Checkpoint {
				if base == "" {
					return publishMemory(t, s, processes...)
				}
				staged := stageMemory(t, filepath.Join(base, "image"), processes...)
				defer os.RemoveAll(staged)
				c, err := s.Publish(t.Context(), staged, goodInfo(t), nil)
				must(t, err)
				return c
			}
			wantMemory(t, put(main, shared), 0, main, shared)
			disk, err := s.DiskBytes()
			must(t, err)
			for i := range 3 {
				main, shared = main.with(1, 100+i, 6, 900), shared.with(2, 511)
				c := put(main, shared)
				wantMemory(t, c, 1024-3-i+512-1, main, shared)
				if c.New > 12*page || c.Shared < 6<<20 {
					t.Errorf("%s: %d bytes are new, and %d shared", c.Name, c.New, c.Shared)
				}
				must(t, s.Verify(t.Context(), c, 1, nil))
			}
			if now, err := s.DiskBytes(); err != nil || now > disk+1<<20 {
				t.Errorf("%d bytes on the disk, and %d before: %v", now, disk, err)
			}
			all := list(t, s)
			for _, c := range all[:3] {
				must(t, os.RemoveAll(c.Dir)) // by hand
			}
			wantWhole(t, s, all[3].Name)
			wantMemory(t, all[3], 1019+511, main, shared)
			main = main.with(1, 17)
			wantMemory(t, put(main, shared), 1018+511, main, shared) // there are no chains
		})
	}
}

// TestOnceHalfHasChangedAllIsStored, and what follows is compared with that.
func TestOnceHalfHasChangedAllIsStored(t *testing.T) {
	s := openStore(t, quickDir(t))
	p := newProcess("7", 1, 1, 4)
	publishMemory(t, s, p)
	half := p.with(1, every(2, 1024)...)
	wantMemory(t, publishMemory(t, s, half), 512, half)
	more := half.with(1, 1)
	c := publishMemory(t, s, more)
	wantMemory(t, c, 0, more)
	if c.New < 4<<20 {
		t.Errorf("%d bytes are new", c.New)
	}
	last := more.with(1, 2)
	wantMemory(t, publishMemory(t, s, last), 1023, last)
}

// TestMemoryOfDifferentAgesHasOneParent: what each process was compared with is in one directory,
// whatever numbers the dumps gave their files.
func TestMemoryOfDifferentAgesHasOneParent(t *testing.T) {
	s := openStore(t, quickDir(t))
	a, b, gone := newProcess("7", 1, 1, 2), newProcess("8", 2, 2, 2), newProcess("9", 3, 3, 2)
	publishMemory(t, s, a, b, gone)
	a, b = a.with(2, 3), newProcess("8", 1, 4, 2) // b starts anew, and the numbers are exchanged
	c := publishMemory(t, s, a, b)
	wantMemory(t, c, 511, a, b)
	for i := range 3 { // 1 and 2 are the numbers of both dumps that are in parent now
		a, b = a.with(uint32(1+i%2), 4), b.with(uint32(2-i%2), 5)
		wantMemory(t, publishMemory(t, s, a, b), 510+511, a, b)
	}
	must(t, s.Remove(nameOf(1)))
	must(t, s.Remove(nameOf(2)))
	gone = gone.with(3)
	wantMemory(t, publishMemory(t, s, a, b, gone), 510+511, a, b, gone)
	wantWhole(t, s, "000003 000004 000005 000006")
}

// TestAnyHistoryOfMemoryIsWhole changes memory at random, while checkpoints are removed.
func TestAnyHistoryOfMemoryIsWhole(t *testing.T) {
	disk := onTmpfs(t, "size=1g")
	first := map[string]process{"7": newProcess("7", 1, 1, 2), "shmem-5": newProcess("shmem-5", 2, 2, 2)}
	for seed := range uint64(15) {
		random := rand.New(rand.NewPCG(seed, seed))
		s := openStore(t, filepath.Join(disk, fmt.Sprint("job", seed)))
		processes, want := maps.Clone(first), make(map[string][]process)
		for range 5 {
			for name, p := range processes {
				p = p.with(0, every(1+random.IntN(200), len(p.data)/page-random.IntN(100))...)
				if random.IntN(6) == 0 {
					p.begin += 100
				}
				if random.IntN(6) == 0 && len(p.data) > 1<<20 {
					p.data, p.begin = p.data[50*page:], p.begin+50
				}
				processes[name] = p
			}
			if random.IntN(2) == 0 {
				p := processes["7"].with(0)
				p.name = "8"
				processes[p.name] = p
			}
			now := slices.Collect(maps.Values(processes))
			for i := range now {
				now[i].id = uint32(i + 1) // in any order
			}
			c := publishMemory(t, s, now...)
			want[c.Name] = now
			if all := list(t, s); len(all) > 2 {
				must(t, s.Remove(all[random.IntN(3)].Name))
			}
		}
		for _, c := range list(t, s) {
			must(t, s.Verify(t.Context(), c, 1, nil))
			for _, p := range want[c.Name] {
				if data, _ := memoryOf(t, c.Dir, p.name); !bytes.Equal(data, p.data) {
					t.Fatalf("seed %d: %s: the memory of %s is another one", seed, c.Name, p.name)
				}
			}
		}
		must(t, s.Close())
		must(t, os.RemoveAll(s.Dir()))
	}
}

// TestWhatCriuDoesNotLookForInAParentIsStored: see [images.Areas].
func TestWhatCriuDoesNotLookForInAParentIsStored(t *testing.T) {
	const regular, anonymous, plugin, write = 1, 1 << 9, 1 << 27, unix.PROT_READ | unix.PROT_WRITE
	for name, test := range map[string]struct {
		areas  []*vma.VmaEntry
		parent int
	}{
		"nothing": {nil, 2047},
		"huge pages and a plugin's": {[]*vma.VmaEntry{
			area(firstRAM, 64, write, unix.MAP_PRIVATE, regular|anonymous),
			area(firstRAM+64, 512, write, unix.MAP_PRIVATE|unix.MAP_HUGETLB, regular|anonymous),
			area(firstRAM+600, 10, write, unix.MAP_PRIVATE, regular|anonymous|plugin),
		}, 2047 - 512 - 10},
		"much that nobody writes": {[]*vma.VmaEntry{area(1<<20, maxReadOnly/page+1, 0, unix.MAP_PRIVATE, regular|anonymous)}, 0},
		"much that takes no memory": {[]*vma.VmaEntry{
			area(1<<20, maxReadOnly/page+1, 0, unix.MAP_PRIVATE|unix.MAP_NORESERVE, regular|anonymous),
			area(1<<30, maxReadOnly/page+1, 0, unix.MAP_SHARED, regular),
		}, 2047},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, quickDir(t))
			p := newProcess("7", 1, 1, 8)
			p.areas = test.areas
			publishMemory(t, s, p)
			p = p.with(1, 3)
			wantMemory(t, publishMemory(t, s, p), test.parent, p)
		})
	}
}

// TestMemoryThatIsDamagedIsNotShared: it is said, and all is stored again.
func TestMemoryThatIsDamagedIsNotShared(t *testing.T) {
	for name, damage := range map[string]func(path string, data string) error{
		"a page": func(path, data string) error { return flip(path, data, len(data)/2) },
		"its end": func(path, data string) error {
			return os.Truncate(path, int64(len(data)-1))
		},
		"gone": func(path, _ string) error { return os.Remove(path) },
	} {
		for _, file := range []string{"pages-1.img", "pagemap-7.img"} {
			t.Run(name+" of "+file, func(t *testing.T) {
				s := openStore(t, quickDir(t))
				p := newProcess("7", 1, 1, 4)
				a := publishMemory(t, s, p)
				must(t, damage(filepath.Join(a.Dir, file), content(t, a.Dir)[file]))
				p = p.with(1, 3)
				b := publishMemory(t, s, p)
				wantMemory(t, b, 0, p)
				if len(b.Warnings) != 1 || !strings.Contains(b.Warnings[0], a.Name) || !strings.Contains(b.Warnings[0], file) {
					t.Errorf("warnings %q", b.Warnings)
				}
				must(t, s.Verify(t.Context(), b, 1, nil))
			})
		}
	}
}

// TestAnImageThatIsNotUnderstoodIsStoredAsItIs, whatever is in it.
func TestAnImageThatIsNotUnderstoodIsStoredAsItIs(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string){
		"two pagemaps of one file": func(t *testing.T, dir string) {
			data, err := os.ReadFile(filepath.Join(dir, "pagemap-7.img"))
			must(t, err)
			must(t, os.WriteFile(filepath.Join(dir, "pagemap-8.img"), data, 0o600))
		},
		"a pagemap that is cut off": func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, "pagemap-7.img"), 30)) },
		"an empty pagemap":          func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, "pagemap-7.img"), 0)) },
		"too few pages":             func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, "pages-1.img"), 3<<20)) },
		"no pages":                  func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "pages-1.img"))) },
		"no areas":                  func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "mm-7.img"))) },
		"areas that are damaged":    func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, "mm-7.img"), 20)) },
		"an area that ends before it begins": func(t *testing.T, dir string) {
			bad := area(100, 0, 3, unix.MAP_PRIVATE|unix.MAP_HUGETLB, 1)
			must(t, os.WriteFile(filepath.Join(dir, "mm-7.img"), mmImage(t, bad), 0o600))
		},
		"a parent of its own": func(t *testing.T, dir string) {
			must(t, os.Mkdir(filepath.Join(dir, parentDir), 0o700))
			must(t, os.WriteFile(filepath.Join(dir, parentDir, "pages-1.img"), []byte("x"), 0o600))
		},
		"a parent without its directory": func(t *testing.T, dir string) {
			writePagemap(t, filepath.Join(dir, "pagemap-7.img"), pagemap.Map{PagesID: 1, Entries: []pagemap.Entry{
				{Address: firstRAM * page, Pages: 1023, Flags: 4}, {Address: (firstRAM + 1023) * page, Pages: 1, Flags: pagemap.InParent},
			}})
			must(t, os.Truncate(filepath.Join(dir, "pages-1.img"), 1023*page))
		},
		"far too many pages": func(t *testing.T, dir string) {
			writePagemap(t, filepath.Join(dir, "pagemap-7.img"), pagemap.Map{PagesID: 1, Entries: []pagemap.Entry{{Address: page, Pages: 1 << 31, Flags: 4}}})
		},
		"a long pagemap": func(t *testing.T, dir string) {
			must(t, os.Truncate(filepath.Join(dir, "pagemap-7.img"), maxPagemapBytes+1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, quickDir(t))
			p := newProcess("7", 1, 1, 4)
			publishMemory(t, s, p)
			staged := stageMemory(t, filepath.Join(s.Dir(), "image"), p)
			change(t, staged)
			c, err := s.Publish(t.Context(), staged, goodInfo(t), nil)
			must(t, err)
			got, want := content(t, c.Dir), content(t, staged)
			delete(got, recordName)
			if !maps.Equal(got, want) {
				t.Errorf("%q is stored, want %q", sortedNames(got), sortedNames(want))
			}
			must(t, s.Verify(t.Context(), c, 1, nil))
		})
	}
}

func TestWithoutLinksAllMemoryIsWritten(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	p := newProcess("7", 1, 1, 4)
	a := publishMemory(t, s, p)
	pages := filepath.Join(a.Dir, "pages-1.img")
	setImmutable(t, pages, true)
	defer setImmutable(t, pages, false)
	p = p.with(1, 4)
	wantMemory(t, publishMemory(t, s, p), 0, p)
}

func TestADamagedParentIsNamed(t *testing.T) {
	s := openStore(t, quickDir(t))
	p := newProcess("7", 1, 1, 4)
	publishMemory(t, s, p)
	c := publishMemory(t, s, p.with(1, 3))
	for name, data := range content(t, c.Dir) {
		if !strings.HasPrefix(name, parentDir) {
			continue
		}
		path := filepath.Join(c.Dir, name)
		must(t, os.Remove(path)) // the other name keeps its content
		for _, damage := range []func() error{
			func() error { return nil },
			func() error { return os.WriteFile(path, []byte(data[1:]), 0o600) },
			func() error { return flip(path, data, len(data)/2) },
		} {
			must(t, damage())
			wantError(t, s.Check(t.Context(), c), name)
			wantError(t, s.Verify(t.Context(), c, 1, nil), name)
		}
		must(t, os.WriteFile(path, []byte(data), 0o600))
		must(t, s.Check(t.Context(), list(t, s)[0]))
	}
	wantWhole(t, s, "000001 000002")
}

func TestADifferenceArrivesElsewhere(t *testing.T) {
	from, to := openStore(t, quickDir(t)), openStore(t, quickDir(t))
	p := newProcess("7", 1, 1, 4)
	publishMemory(t, from, p)
	q := newProcess("8", 1, 2, 2)
	p = p.with(2, 3)
	publishMemory(t, from, p, q)
	publishMemory(t, from, p.with(2, 4), q.with(1, 5))
	listed, err := from.List(all)
	must(t, err)
	var sent int64
	for _, l := range listed {
		n, err := sendTo(t, from, to, l)
		must(t, err)
		sent += n
	}
	if sent > 6<<20+200<<10 {
		t.Errorf("%d bytes were sent", sent)
	}
	wantWhole(t, to, "000001 000002 000003")
	there := list(t, to)
	wantMemory(t, there[2], 1022+511, p.with(2, 4), q.with(1, 5))
	r := p.with(2, 9)
	wantMemory(t, publishMemory(t, to, r), 1022, r) // and goes on there
}

// TestAFullDiskHarmsNoDifference fills the disk while a difference is written.
func TestAFullDiskHarmsNoDifference(t *testing.T) {
	disk := onTmpfs(t, "size=16m")
	s := openStore(t, filepath.Join(disk, "job"))
	p := newProcess("7", 1, 1, 8)
	publishMemory(t, s, p)
	staged := stageMemory(t, filepath.Join(t.TempDir(), "image"), p.with(1, every(2, 2048)...))
	fill, err := os.Create(filepath.Join(disk, "fill"))
	must(t, err)
	_, err = io.Copy(fill, io.LimitReader(zeros{}, 5<<20))
	must(t, err)
	must(t, fill.Close())
	if _, err := s.Publish(t.Context(), staged, goodInfo(t), nil); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v", err)
	}
	wantWhole(t, s, "000001")
	entries, err := os.ReadDir(s.path(checkpointsDir))
	must(t, err)
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() != "000001" }) {
		t.Errorf("left over: %v", entries)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestTheComparisonKeepsToItsRate(t *testing.T) {
	s := openStore(t, quickDir(t))
	p := newProcess("7", 1, 1, 4)
	publishMemory(t, s, p)
	staged := stageMemory(t, filepath.Join(s.Dir(), "image"), p)
	var seen []string
	s.SetRate(8 << 20)
	ctx, cancel := withTimeout(t)
	defer cancel()
	_, err := s.Publish(ctx, staged, goodInfo(t), func(p Progress) { seen = append(seen, fmt.Sprint(p.Done>>20)) })
	if err == nil || !isGivenUp(ctx, err) {
		t.Errorf("4 MiB at 8 MiB/s took less than 0.2 s: %v %v", err, seen)
	}
	wantWhole(t, s, "000001")
}

func withTimeout(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), 200*time.Millisecond)
}
