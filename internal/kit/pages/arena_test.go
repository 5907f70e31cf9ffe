package pages

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"cucriu/internal/kit/proc"
)

const (
	testID   = "0123456789abcdef"
	testPID  = 7
	pageSize = 4096
)

// arena is memory of this process outside Go's heap. The tests copy and fill it like the
// memory of any other process.
type arena struct {
	*proc.Process
	memory []byte
}

func newArena(t testing.TB, size int) *arena {
	t.Helper()
	p, err := proc.Open(os.Getpid())
	must(t, err)
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(t, err)
	t.Cleanup(func() { must(t, unix.Munmap(memory)); must(t, p.Close()) })
	return &arena{p, memory}
}

func (a *arena) start() uint64 { return uint64(uintptr(unsafe.Pointer(&a.memory[0]))) }

// of is the memory at what is in the arena.
func (a *arena) of(r proc.Range) []byte {
	return a.memory[r.Start-a.start() : r.End-a.start()]
}

// part is a range of the arena.
func (a *arena) part(from, to int) proc.Range {
	return proc.Range{Start: a.start() + uint64(from), End: a.start() + uint64(to)}
}

// set sets all of the arena to one byte.
func (a *arena) set(b byte) {
	a.memory[0] = b
	for n := 1; n < len(a.memory); n *= 2 {
		copy(a.memory[n:], a.memory[:n])
	}
}

// noise does not compress; text does.
var (
	noise = func() []byte {
		b := make([]byte, 4*ChunkSize)
		_, _ = rand.NewChaCha8([32]byte{}).Read(b)
		return b
	}()
	text = bytes.Repeat([]byte("the state of a GPU, "), 4*ChunkSize/20)
)

func must(t rapid.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// descriptors returns how many descriptors this process has open.
func descriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

func wantEmpty(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	if len(entries) > 0 {
		t.Errorf("left in the directory: %v", entries)
	}
}
