package inject

import (
	"encoding/binary"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// runSequence is the program of a target. Its thread leaves a restartable sequence only
// through the abort handler, which counts.
func runSequence() {
	runtime.LockOSThread()
	b := mapBoard(3)
	memory, err := unix.MmapPtr(-1, 0, nil, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		panic(err)
	}
	const (
		abi, sequence = 256, 320 // offsets of struct rseq and struct rseq_cs
		begin, end    = 23, 25   // of the sequence in the code
		abortion      = 29       // behind the signature
		signature     = uint32(0x53053053)
	)
	page, address := unsafe.Slice((*byte)(memory), 4096), uint64(uintptr(memory))
	code := []byte{0x48, 0xb8} // mov rax, sequence
	code = binary.LittleEndian.AppendUint64(code, address+sequence)
	code = append(code, 0x48, 0xb9) // mov rcx, rseq_cs
	code = binary.LittleEndian.AppendUint64(code, address+abi+8)
	code = append(code, 0x48, 0x89, 0x01) // mov [rcx], rax
	code = append(code, 0xeb, 0xfe)       // here: jmp here
	code = binary.LittleEndian.AppendUint32(code, signature)
	code = append(code, 0x48, 0xb9) // mov rcx, aborts
	code = binary.LittleEndian.AppendUint64(code, uint64(uintptr(unsafe.Pointer(&b.Threads[0].Rounds))))
	code = append(code, 0xf0, 0x48, 0xff, 0x01, 0xeb, 0xd3) // lock inc [rcx]; jmp to the start
	copy(page, code)
	binary.LittleEndian.PutUint32(page[abi+4:], ^uint32(0)) // no cpu_id yet
	for i, field := range []uint64{0, address + begin, end - begin, address + abortion} {
		binary.LittleEndian.PutUint64(page[sequence+8*i:], field)
	}
	mask := allSignals
	sigprocmask(&mask)
	if _, _, errno := unix.RawSyscall6(unix.SYS_RSEQ, uintptr(address+abi), 32, 0, uintptr(signature), 0, 0); errno != 0 {
		panic(errno)
	}
	b.Region.Store(address)
	b.Threads[0].TID.Store(uint64(unix.Gettid()))
	b.Ready.Store(1)
	function := &struct{ code uintptr }{uintptr(memory)}
	(*(*func())(unsafe.Pointer(&function)))()
}

func TestARestartableSequenceIsAborted(t *testing.T) {
	p := startTarget(t, "sequence", 1)
	for range 3 {
		p.stop(t)
		aborts := p.Threads[0].Rounds.Load()
		b := p.borrow(t, p.tids()[0])
		page := proc.Range{Start: p.Region.Load(), End: p.Region.Load() + uint64(os.Getpagesize())}
		must(t, b.Madvise(t.Context(), []proc.Range{page}, unix.MADV_POPULATE_WRITE))
		must(t, b.Return(t.Context()))
		must(t, p.Signal(unix.SIGCONT))
		eventually(t, "abort", func() bool { return p.Threads[0].Rounds.Load() > aborts })
	}
}
