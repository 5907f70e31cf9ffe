package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func isGone(err error) bool { return errors.Is(err, ErrGone) }

// reaped is a process that has ended and was reaped.
func reaped(t *testing.T) *Process {
	t.Helper()
	cmd := start(t, "sleep", "100")
	p := open(t, cmd.Process.Pid)
	must(t, p.Signal(unix.SIGKILL))
	_ = cmd.Wait()
	return p
}

func TestMemoryIsReadAndWrittenAsAWhole(t *testing.T) {
	const private, rw = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS, unix.PROT_READ | unix.PROT_WRITE
	p := open(t, os.Getpid())
	page := os.Getpagesize()
	for name, tt := range map[string]struct {
		change          func(t *testing.T, middle []byte) // of three pages
		reads, writes   bool
		middleUnchanged bool
	}{
		"writable":       {func(*testing.T, []byte) {}, true, true, false},
		"a hole":         {punch, false, false, false},
		"only read":      {protect(unix.PROT_READ), true, false, true},
		"not accessible": {protect(unix.PROT_NONE), false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			memory := mapPages(t, 3, rw, private, -1)
			address := rangeOf(memory).Start
			for i := range memory {
				memory[i] = byte(i % 251)
			}
			// The first page and a byte, from its middle on: neither end is aligned.
			want := bytes.Clone(memory[page/2 : 2*page+1])
			tt.change(t, memory[page:2*page])

			data := make([]byte, len(want))
			checkTransfer(t, p, "read", p.ReadMemory(data, address+uint64(page/2)), tt.reads)
			if tt.reads && !bytes.Equal(data, want) {
				t.Error("read something else")
			}
			checkTransfer(t, p, "write", p.WriteMemory(bytes.Repeat([]byte{0xee}, len(want)), address+uint64(page/2)), tt.writes)
			if tt.writes && len(bytes.Trim(memory[page/2:2*page+1], "\xee")) > 0 {
				t.Error("something else was written")
			}
			if tt.middleUnchanged {
				must(t, unix.Mprotect(memory[page:2*page], rw))
				if !bytes.Equal(memory[page:2*page], want[page-page/2:][:page]) {
					t.Error("what cannot be written has changed")
				}
			}
			if memory[page/2-1] != byte((page/2-1)%251) || memory[2*page+1] != byte((2*page+1)%251) {
				t.Error("memory beside it was written")
			}
		})
	}
}

func protect(protection int) func(*testing.T, []byte) {
	return func(t *testing.T, memory []byte) { t.Helper(); must(t, unix.Mprotect(memory, protection)) }
}

// checkTransfer expects that everything was transferred, or an error that names the process
// and the first address that could not be reached.
func checkTransfer(t *testing.T, p *Process, what string, err error, done bool) {
	t.Helper()
	if done {
		must(t, err)
	} else if !errors.Is(err, unix.EFAULT) || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), p.String()) {
		t.Errorf("%s: %v", what, err)
	}
}

func TestTheErrorSaysWhereTheMemoryEnds(t *testing.T) {
	p := open(t, os.Getpid())
	memory := mapPages(t, 2, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1)
	page := len(memory) / 2
	punch(t, memory[page:])
	err := p.ReadMemory(make([]byte, len(memory)), rangeOf(memory).Start)
	if want := fmt.Sprintf("read %d bytes of memory of %v at %#x", page, p, rangeOf(memory[page:]).Start); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

func TestTheMemoryOfAProcessThatHasEndedIsGone(t *testing.T) {
	zombie := open(t, start(t, "sh", "-c", "kill -STOP $$").Process.Pid)
	must(t, WaitStopped(t.Context(), zombie)) // its program is mapped
	space, err := ReadAddressSpace(zombie.PID)
	must(t, err)
	address := space.Mapped[0].Start // of its program
	must(t, zombie.ReadMemory(make([]byte, 1), address))
	must(t, zombie.Signal(unix.SIGKILL))
	must(t, zombie.WaitExit(t.Context())) // nobody has reaped it
	for name, p := range map[string]*Process{"zombie": zombie, "reaped": reaped(t)} {
		data := slices.Repeat([]byte{7}, 8)
		for what, err := range map[string]error{"read": p.ReadMemory(data, address), "write": p.WriteMemory(data, address)} {
			if !isGone(err) || !strings.Contains(err.Error(), what+" memory of "+p.String()) {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
	}
}

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
	percent := debug.SetGCPercent(-1) // it maps little pieces of memory, which may come into a hole: see punch
	runtime.GC()                      // the end of one that has begun
	memory, err := unix.Mmap(fd, 0, pages*os.Getpagesize(), protection, flags)
	must(t, err)
	t.Cleanup(func() {
		must(t, unix.Munmap(memory))
		debug.SetGCPercent(percent)
	})
	return memory
}

func rangeOf(memory []byte) Range {
	start := uint64(uintptr(unsafe.Pointer(&memory[0])))
	return Range{start, start + uint64(len(memory))}
}

// Unmap a hole. Nobody maps so little meanwhile, while there is no garbage collection.
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
