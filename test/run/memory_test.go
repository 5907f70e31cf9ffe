package run

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs"
	"cucriu/internal/testenv"
)

// memoryVariable says how many MiB of memory the job has to itself, and an eighth of it for others.
const memoryVariable = "CUCRIU_RUN_TEST_MEMORY"

const (
	memoryPage    = 4096
	memoryChanges = 50 // one page in so many changes
)

// memory is memory of the job of which little changes.
type memory struct {
	private, shared []byte
	versions        []uint32 // of each page
}

func newMemory() (*memory, error) {
	mib, _ := strconv.Atoi(os.Getenv(memoryVariable))
	if mib == 0 {
		return nil, nil
	}
	m := &memory{versions: make([]uint32, mib<<20/memoryPage)}
	var err error
	m.private, err = unix.Mmap(-1, 0, mib<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	m.shared, err = unix.Mmap(-1, 0, mib<<20/8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	for page := range m.versions {
		m.write(page)
	}
	return m, nil
}

// words calls do for words of both pages with what they have to be.
func (m *memory) words(page int, do func(word []byte, want uint64)) {
	for i, part := range [][]byte{m.private, m.shared} {
		if page*memoryPage >= len(part) {
			continue
		}
		for at := 0; at < memoryPage; at += memoryPage / 8 {
			want := uint64(m.versions[page])<<40 | uint64(page)<<8 | uint64(at/512+i*8)
			do(part[page*memoryPage+at:][:8], want*0x9e3779b97f4a7c15)
		}
	}
}

func (m *memory) write(page int) {
	m.words(page, binary.LittleEndian.PutUint64)
}

// tick changes some pages, and returns the first one that is not what it was.
func (m *memory) tick(n int) (wrong string) {
	if m == nil {
		return ""
	}
	for page := range m.versions {
		m.words(page, func(word []byte, want uint64) {
			if got := binary.LittleEndian.Uint64(word); got != want && wrong == "" {
				wrong = fmt.Sprintf("page %d of version %d has %#x, want %#x", page, m.versions[page], got, want)
			}
		})
	}
	for i := range 8 {
		page := (n*8 + i) * memoryChanges % len(m.versions) / memoryChanges * memoryChanges
		m.versions[page]++
		m.write(page)
	}
	return wrong
}

// TestMemoryThatDidNotChangeIsWrittenOnce: a checkpoint is a difference to an earlier one, and all
// that a restore needs.
func TestMemoryThatDidNotChangeIsWrittenOnce(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		// A resume gives shared memory another number, and it is stored once more.
		const mib = 64
		w := newMixedWorld(t)
		w.host.Setenv(memoryVariable, strconv.Itoa(mib))
		r := w.run("--every", "0")
		w.ticks(1) // it has filled its memory
		r.kill()
		r = w.run()
		r.verified(4)
		made := w.isSmall(0, mib<<20)
		r.killsAll()
		newest := w.newest()
		for _, name := range w.checkpoints() {
			if name != newest {
				if err := os.RemoveAll(filepath.Join(w.dir, "checkpoints", name)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !testenv.Exists(filepath.Join(w.dir, "checkpoints", newest, "parent")) {
			t.Fatal("the newest checkpoint has no parent, so the test shows nothing")
		}
		// Pids are the same, so the memory is compared after a resume as well.
		r = w.goesOn(newest)
		r.verified(3)
		made = w.isSmall(made, mib<<20)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		r = w.goesOn(w.newest())
		r.verified(1)
		w.isSmall(made, mib<<20)
		w.finish(r)
	})
}

// TestADifferenceComesBackWithoutItsConnections: what is restored then is a copy.
func TestADifferenceComesBackWithoutItsConnections(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.host.Setenv(memoryVariable, "8")
		w.host.Setenv(connectVariable, listen(t))
		r := w.run()
		r.verified(2)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		if !testenv.Exists(filepath.Join(w.dir, "checkpoints", w.newest(), "parent")) {
			t.Fatal("the newest checkpoint has no parent, so the test shows nothing")
		}
		r = w.goesOn(w.newest())
		r.says("leads out of the job and is restored closed")
		w.finish(r)
	})
}

// isSmall fails the test unless the checkpoints after the first few have little that is new, and
// all together take little more room than one. It returns how many there are.
func (w *world) isSmall(skip int, memory int64) int {
	w.t.Helper()
	made := 0
	for _, e := range w.events() {
		if e.Event != jobs.EventCheckpoint {
			continue
		}
		if made++; made <= skip {
			continue
		}
		if made == 1 && e.NewBytes < memory {
			w.t.Errorf("the first checkpoint has %d new bytes, and the job has %d", e.NewBytes, memory)
		}
		if made > 1 && (e.NewBytes > memory/3 || e.Bytes < memory) {
			w.t.Errorf("%s has %d bytes, of which %d are new", e.Checkpoint, e.Bytes, e.NewBytes)
		}
	}
	if made < skip+1 {
		w.t.Errorf("there are %d checkpoints", made)
	}
	var disk int64
	seen := make(map[uint64]bool)
	err := filepath.Walk(filepath.Join(w.dir, "checkpoints"), func(_ string, info os.FileInfo, err error) error {
		if err != nil {
			return nil // pruned meanwhile
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && !seen[stat.Ino] {
			seen[stat.Ino] = true
			disk += stat.Blocks * 512
		}
		return nil
	})
	if err != nil || disk > memory*2 {
		w.t.Errorf("%d bytes are on the disk: %v", disk, err)
	}
	return made
}
