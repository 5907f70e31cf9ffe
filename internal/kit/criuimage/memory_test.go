package criuimage

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	criucore "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/memfd"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/vma"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"cucriu/internal/kit/pagemap"
)

func put(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func putPagemap(t *testing.T, dir string, id uint32, entries ...pagemap.Entry) {
	t.Helper()
	putPagemapOf(t, dir, "pagemap-7.img", id, entries...)
}

func putPagemapOf(t *testing.T, dir, name string, id uint32, entries ...pagemap.Entry) {
	t.Helper()
	var b bytes.Buffer
	if _, err := (pagemap.Map{PagesID: id, Entries: entries}).WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	put(t, dir, name, b.Bytes())
}

// TestTheImagesOfMemoryAreNamed, those in the parent too, and what is missing there is found
// before criu looks for it.
func TestTheImagesOfMemoryAreNamed(t *testing.T) {
	size := pagemap.PageSize()
	here := pagemap.Entry{Address: 16 * size, Pages: 3, Flags: 4}
	there := pagemap.Entry{Address: 19 * size, Pages: 2, Flags: pagemap.InParent}
	held := pagemap.Entry{Address: there.Address, Pages: there.Pages, Flags: 4} // in the parent
	pages := func(n uint64) []byte { return make([]byte, n*size) }
	for _, test := range []struct {
		name string
		make func(t *testing.T, dir, parent string)
		want string // the names, or what is wrong
	}{
		{"whole", func(t *testing.T, dir, _ string) {
			putPagemap(t, dir, 1, here)
			put(t, dir, "pages-1.img", pages(3))
		}, "pages-1.img"},
		{"nothing", func(t *testing.T, dir, _ string) { putPagemap(t, dir, 1) }, ""},
		{"a difference", func(t *testing.T, dir, parent string) {
			putPagemap(t, dir, 1, here, there)
			put(t, dir, "pages-1.img", pages(3))
			putPagemap(t, parent, 2, held)
			put(t, parent, "pages-2.img", pages(2))
		}, "pages-1.img parent/pagemap-7.img parent/pages-2.img"},
		{"all in the parent", func(t *testing.T, dir, parent string) {
			putPagemap(t, dir, 1, there)
			putPagemap(t, parent, 2, held)
			put(t, parent, "pages-2.img", pages(2))
		}, "parent/pagemap-7.img parent/pages-2.img"},
		{"too few pages", func(t *testing.T, dir, _ string) {
			putPagemap(t, dir, 1, here)
			put(t, dir, "pages-1.img", pages(2))
		}, "pages-1.img is damaged"},
		{"no pages", func(t *testing.T, dir, _ string) { putPagemap(t, dir, 1, here) }, "pages-1.img"},
		{"no pagemap in the parent", func(t *testing.T, dir, _ string) { putPagemap(t, dir, 1, there) }, "parent/pagemap-7.img"},
		{"too few pages in the parent", func(t *testing.T, dir, parent string) {
			putPagemap(t, dir, 1, there)
			putPagemap(t, parent, 2, held)
			put(t, parent, "pages-2.img", pages(1))
		}, "parent/pages-2.img is damaged"},
		{"of another criu", func(t *testing.T, dir, _ string) {
			putPagemap(t, dir, 1, here)
			data, err := os.ReadFile(filepath.Join(dir, "pagemap-7.img"))
			if err != nil {
				t.Fatal(err)
			}
			put(t, dir, "pagemap-7.img", append(data, 6, 0, 0, 0, 8, 0, 16, 1, 56, 1)) // field 7
		}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			parent := filepath.Join(dir, ParentName)
			if err := os.Mkdir(parent, 0o700); err != nil {
				t.Fatal(err)
			}
			test.make(t, dir, parent)
			names, err := pagesOf(dir, "pagemap-7.img")
			got := strings.Join(names, " ")
			if err != nil {
				got = err.Error()
			}
			if wrong := strings.Contains(test.want, "damaged") || strings.HasPrefix(test.name, "no "); wrong != (err != nil) || wrong && !strings.Contains(got, test.want) || !wrong && got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestAreasThatCriuRestoresInAnotherWay(t *testing.T) {
	const regular, filePrivate, anonPrivate, anonShared, plugin = 1, 1 << 6, 1 << 9, 1 << 8, 1 << 27
	area := func(start, end uint64, prot, flags, status uint32) *vma.VmaEntry {
		return &vma.VmaEntry{
			Start: &start, End: &end, Pgoff: proto.Uint64(0), Shmid: proto.Uint64(0), Prot: &prot, Flags: &flags, Status: &status, Fd: proto.Int64(-1),
		}
	}
	m := &mm.MmEntry{Vmas: []*vma.VmaEntry{
		area(0x9000, 0xa000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_HUGETLB, regular|anonPrivate),
		area(0x1000, 0x3000, unix.PROT_READ, unix.MAP_PRIVATE, regular|filePrivate),
		area(0x3000, 0x7000, unix.PROT_NONE, unix.MAP_PRIVATE, regular|anonPrivate),
		area(0x7000, 0x8000, unix.PROT_READ, unix.MAP_SHARED, regular|anonShared),
		area(0x8000, 0x9000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE, regular|anonPrivate|plugin),
		area(0xa000, 0xf000, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_NORESERVE, regular|anonPrivate),
		area(0xf000, 0x10000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE, regular|anonPrivate),
	}}
	filled(m)
	dir := t.TempDir()
	put(t, dir, "mm-7.img", image(t, "MM", m))
	areas, err := ReadAreas(dir, 7)
	if want := []pagemap.Range{{Start: 0x8000, End: 0x9000}, {Start: 0x9000, End: 0xa000}}; err != nil || !slices.Equal(areas.Own, want) || areas.LargestReadOnly != 0x4000 {
		t.Errorf("%+v, want %v and 0x4000: %v", areas, want, err)
	}
	m.Vmas = append(m.Vmas, area(0x20000, 0x20000, 0, 0, 0))
	put(t, dir, "mm-7.img", image(t, "MM", m))
	if areas, err := ReadAreas(dir, 7); err == nil {
		t.Errorf("an empty area: %+v", areas)
	}
}

// TestWhatProcessesTakeIsCountedOnce: a child may share with its parent what it has at the same address, and huge pages
// come from a pool.
func TestWhatProcessesTakeIsCountedOnce(t *testing.T) {
	size := pagemap.PageSize()
	pages := func(address, n uint64, flags uint32) pagemap.Entry {
		return pagemap.Entry{Address: address * size, Pages: n, Flags: flags}
	}
	for name, test := range map[string]struct {
		group       uint32 // of the child
		huge        bool   // the root's last page
		hugeFile    bool   // without a name, which nobody has mapped
		want        uint64 // pages
		otherGroups bool
	}{
		"two processes": {group: 1, want: 3 + 4 + 2},
		"huge pages":    {group: 1, huge: true, want: 2 + 4},
		"huge file":     {group: 1, hugeFile: true, want: 3 + 4},
		"other groups":  {group: 2, want: 3 + 4 + 2, otherGroups: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			host := &inventory.InventoryEntry{ImgVersion: proto.Uint32(2), RootCgSet: proto.Uint32(1)}
			put(t, dir, "inventory.img", image(t, "INVENTORY", host))
			put(t, dir, "pstree.img", image(t, "PSTREE", task(7, 0), task(8, 7)))
			for pid, group := range map[int]uint32{7: 1, 8: test.group} {
				tc := filled(&criucore.TaskCoreEntry{CgSet: &group, TaskState: proto.Uint32(1)})
				put(t, dir, coreName(pid), image(t, "CORE", filled(&criucore.CoreEntry{Tc: tc})))
				m := filled(&mm.MmEntry{})
				if test.huge && pid == 7 {
					m.Vmas = []*vma.VmaEntry{filled(&vma.VmaEntry{
						Start: proto.Uint64(12 * size), End: proto.Uint64(13 * size), Flags: proto.Uint32(unix.MAP_HUGETLB),
					})}
				}
				put(t, dir, addressSpaceName(pid), image(t, "MM", m))
			}
			if test.hugeFile {
				file := filled(&memfd.MemfdInodeEntry{HugetlbFlag: proto.Uint32(1)})
				put(t, dir, "memfd.img", image(t, "MEMFD_INODE", file))
			}
			putPagemap(t, dir, 1, pages(10, 2, 4), pages(12, 1, pagemap.InParent), pages(20, 5, 2))
			putPagemapOf(t, dir, "pagemap-8.img", 2, pages(11, 1, 4), pages(30, 4, 4))
			putPagemapOf(t, dir, "pagemap-shmem-5.img", 3, pages(0, 2, 4))
			got, err := ReadRestored(dir)
			if want := (Restored{test.want * size, test.otherGroups}); err != nil || got != want {
				t.Errorf("%+v, want %+v: %v", got, want, err)
			}
		})
	}
}

// filled gives an entry all that it requires.
func filled[T proto.Message](entry T) T {
	m := entry.ProtoReflect()
	for i := range m.Descriptor().Fields().Len() {
		if f := m.Descriptor().Fields().Get(i); f.Cardinality() == protoreflect.Required && !m.Has(f) {
			if f.Message() != nil {
				m.Set(f, protoreflect.ValueOfMessage(filled(m.NewField(f).Message().Interface()).ProtoReflect()))
			} else {
				m.Set(f, f.Default())
			}
		}
	}
	return entry
}
