package proc

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// drawPages draws ranges of a small address space, ascending, some of them adjacent.
func drawPages(t *rapid.T, name string) []Range {
	var ranges []Range
	var at uint64
	for range rapid.IntRange(0, 8).Draw(t, name) {
		start := at + rapid.Uint64Range(0, 6).Draw(t, name+" gap")
		at = start + rapid.Uint64Range(1, 10).Draw(t, name+" size")
		ranges = append(ranges, Range{start, at})
	}
	return ranges
}

// pagesOf returns the set of the pages in ranges.
func pagesOf(ranges []Range) map[uint64]bool {
	set := make(map[uint64]bool)
	for _, r := range ranges {
		for page := r.Start; page < r.End; page++ {
			set[page] = true
		}
	}
	return set
}

func TestSubtractLeavesWhatIsInNoOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranges, others := drawPages(t, "ranges"), drawPages(t, "others")
		want, other := pagesOf(ranges), pagesOf(others)
		for page := range want {
			if other[page] {
				delete(want, page)
			}
		}
		left := AddressSpace{Private: ranges}.NewSince(AddressSpace{Mapped: others})
		var end uint64
		for _, r := range left {
			if r.Start < end || r.End <= r.Start {
				t.Fatalf("%v is not ascending, or a piece is empty", left)
			}
			end = r.End
		}
		got := pagesOf(left)
		if len(got) != len(want) || Total(left) != uint64(len(want)) {
			t.Fatalf("%v without %v left %v, %d bytes", ranges, others, left, Total(left))
		}
		for page := range want {
			if !got[page] {
				t.Fatalf("%v without %v left %v", ranges, others, left)
			}
		}
	})
}

// mapPages maps pages of this process outside of Go's heap.
func mapPages(t *testing.T, pages, protection, flags, fd int) []byte {
	t.Helper()
	memory, err := unix.Mmap(fd, 0, pages*os.Getpagesize(), protection, flags)
	must(t, err)
	t.Cleanup(func() { must(t, unix.Munmap(memory)) })
	return memory
}

func rangeOf(memory []byte) Range {
	start := uint64(uintptr(unsafe.Pointer(&memory[0])))
	return Range{start, start + uint64(len(memory))}
}

// Unmap a hole. Nobody maps so little meanwhile.
func punch(t *testing.T, memory []byte) {
	t.Helper()
	must(t, unix.MunmapPtr(unsafe.Pointer(&memory[0]), uintptr(len(memory))))
}

func addressSpace(t *testing.T) AddressSpace {
	t.Helper()
	space, err := ReadAddressSpace(os.Getpid())
	must(t, err)
	return space
}

// covers returns how many bytes of a range lie in others.
func covers(others []Range, r Range) uint64 { return r.Size() - Total(Subtract([]Range{r}, others)) }

func TestOnlyMemoryThatNobodyElseHasAPartInIsPrivate(t *testing.T) {
	const rw, anonymous = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	file, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	defer file.Close()
	must(t, file.Truncate(int64(2*os.Getpagesize())))
	for name, tt := range map[string]struct {
		protection, flags, fd int
		private               bool
	}{
		"private and anonymous": {rw, anonymous, -1, true},
		"shared":                {rw, unix.MAP_SHARED | unix.MAP_ANONYMOUS, -1, false},
		"of a file":             {rw, unix.MAP_PRIVATE, int(file.Fd()), false},
		"only read":             {unix.PROT_READ, anonymous, -1, false},
		"not accessible":        {unix.PROT_NONE, anonymous, -1, false},
	} {
		memory := rangeOf(mapPages(t, 2, tt.protection, tt.flags, tt.fd))
		space := addressSpace(t)
		if covers(space.Mapped, memory) != memory.Size() {
			t.Errorf("%s: not among what is mapped", name)
		}
		if got := covers(space.Private, memory); (got == memory.Size()) != tt.private || (got == 0) == tt.private {
			t.Errorf("%s: %d bytes are private", name, got)
		}
	}
}

// The kernel merges a new mapping with a neighbour of the same kind.
func TestTheNewPartOfAnOldMappingIsNew(t *testing.T) {
	memory := mapPages(t, 8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1)
	half := len(memory) / 2
	older, newer := rangeOf(memory[:half]), rangeOf(memory[half:])
	punch(t, memory[half:])
	before := addressSpace(t)
	if covers(before.Mapped, newer) > 0 {
		t.Fatal("what was unmapped is mapped")
	}
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&memory[half]), uintptr(half),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	must(t, err)
	space := addressSpace(t)
	joined := false
	for _, r := range space.Private {
		joined = joined || r.Start <= older.Start && r.End >= newer.End
	}
	if !joined {
		t.Error("the kernel has not joined the mappings: this test shows nothing")
	}
	fresh := space.NewSince(before)
	if covers(fresh, newer) != newer.Size() || covers(fresh, older) != 0 {
		t.Errorf("%v is new, and %v is not: %v", newer, older, fresh)
	}
}

func TestTheAddressSpaceOfAProcessThatIsGone(t *testing.T) {
	if _, err := ReadAddressSpace(reaped(t).PID); !isGone(err) {
		t.Errorf("read: %v", err)
	}
}
