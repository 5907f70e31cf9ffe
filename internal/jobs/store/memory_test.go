package store

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/vma"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/criuimage"
)

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
				c, err := s.Publish(t.Context(), staged, goodInfo(t))
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
		must(t, os.RemoveAll(s.dir))
	}
}

// TestWhatCriuDoesNotLookForInAParentIsStored: see [criuimage.Areas].
func TestWhatCriuDoesNotLookForInAParentIsStored(t *testing.T) {
	const regular, anonymous, plugin, write = 1, 1 << 9, 1 << 27, unix.PROT_READ | unix.PROT_WRITE
	largest, large := uint64(1<<40), 2047 // where the kernel refuses nothing
	if most := criuimage.LargestArea(); most < 1<<60 {
		largest, large = most, 0
	}
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
		"much that nobody writes": {[]*vma.VmaEntry{area(1<<20, largest/page+1, 0, unix.MAP_PRIVATE, regular|anonymous)}, large},
		"less that nobody writes": {[]*vma.VmaEntry{area(1<<20, largest/page-1, 0, unix.MAP_PRIVATE, regular|anonymous), area(1<<40, largest/page-1, 0, unix.MAP_PRIVATE, regular|anonymous)}, 2047},
		"much that takes no memory": {[]*vma.VmaEntry{
			area(1<<20, largest/page+1, 0, unix.MAP_PRIVATE|unix.MAP_NORESERVE, regular|anonymous),
			area(1<<50, largest/page+1, 0, unix.MAP_SHARED, regular),
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
