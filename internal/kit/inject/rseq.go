package inject

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// leaveRestartableSequence moves a program counter that is inside a restartable sequence
// (rseq(2), used by allocators with per-CPU caches) to the abort handler of the sequence.
// The kernel does this itself when a stopped thread continues. But a thread that first
// makes a system call for us is outside the sequence when the kernel looks, and the kernel
// then forgets the sequence.
func leaveRestartableSequence(process *proc.Process, tid int, regs *registers) error {
	var config struct {
		abi                    uint64 // address of the thread's struct rseq
		size, signature, flags uint32
		_                      uint32
	}
	err := ptrace(unix.PTRACE_GET_RSEQ_CONFIGURATION, tid, unsafe.Sizeof(config), unsafe.Pointer(&config))
	if errors.Is(err, unix.EIO) || errors.Is(err, unix.EINVAL) {
		if _, _, errno := unix.RawSyscall6(unix.SYS_RSEQ, 0, 0, 0, 0, 0, 0); errno == unix.ENOSYS {
			return nil
		}
		inCall, err := regs.inCall(process)
		if err == nil && !inCall {
			err = errors.New("this kernel has restartable sequences and does not report whether the thread is in one: Linux 5.13 does")
		}
		return err
	}
	if err != nil {
		return fmt.Errorf("rseq of thread %d: %w", tid, err)
	}
	if config.abi == 0 {
		return nil
	}
	const sequenceOffset = 8 // of rseq_cs in struct rseq
	var sequence uint64
	if err := process.ReadMemory(bytesOf(&sequence), config.abi+sequenceOffset); err != nil || sequence == 0 {
		return err
	}
	var critical struct { // struct rseq_cs
		version, flags          uint32
		start, length, abortion uint64
	}
	if err := process.ReadMemory(bytesOf(&critical), sequence); err != nil {
		return err
	}
	if regs.pc()-critical.start < critical.length {
		regs.setPC(critical.abortion)
	}
	return nil
}

func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }
