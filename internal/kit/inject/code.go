package inject

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// findSyscallInstruction returns the address of an instruction in a process that enters the
// kernel, preferably one in the vdso.
func findSyscallInstruction(process *proc.Process) (uint64, error) {
	return findInCode(process, isVDSO, func(*procfs.ProcMap) bool { return true })
}

// findParkingInstruction returns the address of such an instruction that the process still
// has after a restore. It does not look in the vdso, which is then the new host's, and not in
// writable code, which may change.
func findParkingInstruction(process *proc.Process) (uint64, error) {
	return findInCode(process, func(m *procfs.ProcMap) bool { return !isVDSO(m) && m.Inode != 0 && m.Perms.Private && !m.Perms.Write })
}

func isVDSO(m *procfs.ProcMap) bool { return m.Pathname == "[vdso]" }

// findInCode searches the mappings of code that are wanted, first by the first of these.
func findInCode(process *proc.Process, wanted ...func(*procfs.ProcMap) bool) (uint64, error) {
	maps, err := proc.Mappings(process.PID)
	if err != nil {
		return 0, err
	}
	for _, wanted := range wanted {
		for _, m := range maps {
			if !m.Perms.Execute || !m.Perms.Read || m.Pathname == "[vsyscall]" || !wanted(m) {
				continue
			}
			address, err := findInstruction(process, proc.Range{Start: uint64(m.StartAddr), End: uint64(m.EndAddr)})
			if errors.Is(err, errNotFound) || errors.Is(err, unix.EFAULT) || errors.Is(err, unix.EIO) {
				continue // a mapping beyond the end of its file cannot be read
			}
			return address, err
		}
	}
	return 0, fmt.Errorf("process %d: no system call instruction was found in it: is it a process of this architecture?", process.PID)
}

var errNotFound = errors.New("no such instruction")

func findInstruction(process *proc.Process, in proc.Range) (uint64, error) {
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

// isSyscallInstruction reports whether the instruction at an address enters the kernel.
func isSyscallInstruction(process *proc.Process, address uint64) (bool, error) {
	var at [len(syscallInstruction)]byte
	err := process.ReadMemory(at[:], address)
	return at == syscallInstruction, err
}
