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
func findSyscallInstruction(process *Process) (uint64, error) {
	pid := process.PID
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
		address, err := findInstruction(process, Range{uint64(m.StartAddr), uint64(m.EndAddr)})
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

func findInstruction(process *Process, in Range) (uint64, error) {
	const step = 1 << 20
	code := make([]byte, min(in.Size(), step))
	for start := in.Start; start < in.End; start += step {
		code := code[:min(in.End-start, step)]
		if err := process.ReadMemory(code, start); err != nil {
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

// isSyscallInstruction reports whether what is at an address enters the kernel.
func isSyscallInstruction(process *Process, address uint64) (bool, error) {
	var at [len(syscallInstruction)]byte
	err := process.ReadMemory(at[:], address)
	return at == syscallInstruction, err
}
