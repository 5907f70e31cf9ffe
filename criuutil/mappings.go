package criuutil

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// findSyscallInstruction returns the address of an instruction in a process
// that enters the kernel: one in the vdso, or else in any other code.
func findSyscallInstruction(pid int) (uint64, error) {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return 0, goneOr(pid, err)
	}
	maps, err := proc.ProcMaps()
	if err != nil {
		return 0, goneOr(pid, err)
	}
	maps = slices.DeleteFunc(maps, func(m *procfs.ProcMap) bool {
		return !m.Perms.Execute || !m.Perms.Read || m.Pathname == "[vsyscall]"
	})
	slices.SortStableFunc(maps, func(a, b *procfs.ProcMap) int {
		return rank(a) - rank(b)
	})
	for _, m := range maps {
		address, err := findInstruction(pid, Range{uint64(m.StartAddr), uint64(m.EndAddr)})
		if errors.Is(err, errNotFound) || errors.Is(err, unix.EFAULT) || errors.Is(err, unix.EIO) {
			continue // code beyond the end of its file cannot be read
		}
		return address, err
	}
	return 0, fmt.Errorf("process %d: no code in it enters the kernel: is it a process of this architecture?", pid)
}

func rank(m *procfs.ProcMap) int {
	if m.Pathname == "[vdso]" {
		return 0
	}
	return 1
}

var errNotFound = errors.New("no such instruction")

func findInstruction(pid int, in Range) (uint64, error) {
	const step = 1 << 20
	code := make([]byte, min(in.Size(), step))
	for start := in.Start; start < in.End; start += step {
		code := code[:min(in.End-start, step)]
		if err := readMemory(pid, start, code); err != nil {
			return 0, err
		}
		for from := 0; ; {
			i := bytes.Index(code[from:], syscallInstruction[:])
			if i < 0 {
				break
			}
			if from += i; from%instructionAlignment == 0 {
				return start + uint64(from), nil
			}
			from++
		}
	}
	return 0, errNotFound
}

// readMemory fills the buffer with memory of a process.
func readMemory(pid int, address uint64, into []byte) error {
	local := []unix.Iovec{{Base: &into[0]}}
	local[0].SetLen(len(into))
	n, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(address), Len: len(into)}}, 0)
	if err == nil && n < len(into) {
		err = unix.EFAULT
	}
	if errors.Is(err, unix.ESRCH) {
		err = ErrGone
	}
	if err != nil {
		return fmt.Errorf("process %d: read %d bytes at %#x: %w", pid, len(into), address, err)
	}
	return nil
}
