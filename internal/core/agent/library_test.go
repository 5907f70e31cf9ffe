package agent

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

const mappedAt = 0x7f0000000000

// memoryOf lays a library out as the dynamic loader does, and returns where its mailbox is.
func memoryOf(t testing.TB, path string) (memory []byte, mailbox uint64) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	object, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range object.Progs {
		if p.Type == elf.PT_LOAD {
			memory = append(memory, make([]byte, p.Vaddr+p.Memsz-uint64(len(memory)))...)
			if _, err := io.ReadFull(p.Open(), memory[p.Vaddr:p.Vaddr+p.Filesz]); err != nil {
				t.Fatal(err)
			}
		}
	}
	symbols, err := object.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Name == symbol {
			return memory, s.Value
		}
	}
	t.Fatalf("%s has no mailbox", path)
	return nil, 0
}

// readsOf reads the memory of a process that has only this, and counts the bytes.
func readsOf(memory []byte, sum *int) func([]byte, uint64) error {
	return func(data []byte, address uint64) error {
		*sum += len(data)
		if at := address - mappedAt; address < mappedAt || at > uint64(len(memory)) || uint64(len(data)) > uint64(len(memory))-at {
			return unix.EFAULT
		}
		copy(data, memory[address-mappedAt:])
		return nil
	}
}

// mostRead is more than all that is read of a library, in bytes.
const mostRead = 512 << 10

func libraries(t testing.TB) []string {
	t.Helper()
	found, err := filepath.Glob("../../kit/guest/built/*.so")
	if err != nil || len(found) == 0 {
		t.Fatalf("make build first: %v", err)
	}
	return found
}

func TestTheMailboxIsWhereTheLinkerHasPutIt(t *testing.T) {
	for _, path := range libraries(t) {
		memory, want := memoryOf(t, path)
		read := 0
		if got, err := mailboxIn(readsOf(memory, &read), mappedAt); err != nil || got != want || read > mostRead {
			t.Errorf("%s: at %#x, %v, with %d bytes read; want %#x", path, got, err, read, want)
		}
	}
}

// TestAFileCalledAsTheLibraryTakesNoMemory although its sections say that they are enormous: the file is sparse.
func TestAFileCalledAsTheLibraryTakesNoMemory(t *testing.T) {
	const sections, names, content, size = 4096, 8192, 1 << 20, 24 * 40_000_000
	header := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}, Type: uint16(elf.ET_DYN),
		Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT), Ehsize: 64, Shoff: sections, Shentsize: 64, Shnum: 4, Shstrndx: 3,
	}
	table := []elf.Section64{
		{},
		{Name: 1, Type: uint32(elf.SHT_DYNSYM), Off: content, Size: size, Link: 2, Entsize: 24},
		{Name: 9, Type: uint32(elf.SHT_STRTAB), Off: content, Size: 4096},
		{Name: 17, Type: uint32(elf.SHT_STRTAB), Off: names, Size: 64},
	}
	path := filepath.Join(t.TempDir(), "guest-bomb.so")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for at, value := range map[int64]any{0: header, sections: table, names: []byte("\x00.dynsym\x00.dynstr\x00.shstrtab\x00")} {
		data, err := binary.Append(nil, binary.LittleEndian, value)
		if err == nil {
			_, err = file.WriteAt(data, at)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Truncate(content + size); err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(int(file.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	process, err := proc.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if a, err := Find(process); a != nil || err != nil {
		t.Errorf("%v, %v", a, err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("it took %d MiB", took>>20)
	}
}

// FuzzLibrary: a job may map any file under the library's name.
func FuzzLibrary(f *testing.F) {
	for _, path := range libraries(f) {
		memory, _ := memoryOf(f, path)
		f.Add(memory[:64<<10])
	}
	f.Add([]byte("not elf"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, memory []byte) {
		read := 0
		at, err := mailboxIn(readsOf(memory, &read), mappedAt)
		if read > mostRead {
			t.Errorf("%d bytes were read", read)
		}
		if err == nil && at >= 1<<63 {
			t.Errorf("a mailbox at %#x", at)
		}
	})
}
