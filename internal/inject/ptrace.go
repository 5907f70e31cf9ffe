package inject

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ptrace is for requests for which x/sys/unix has no function.
func ptrace(request, tid int, address uintptr, data unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), address, uintptr(data), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// signalMask is a set of blocked signals as in the kernel: bit n-1 is signal n. The kernel
// never includes SIGKILL and SIGSTOP.
type signalMask uint64

const allSignals = ^signalMask(0)

// read reads the mask that the thread itself has set. During ppoll, sigsuspend and the
// like, this is the mask that the kernel puts back after the call; the mask of the call is
// set again when the call is restarted.
func (m *signalMask) read(tid int) error {
	return ptrace(unix.PTRACE_GETSIGMASK, tid, unsafe.Sizeof(*m), unsafe.Pointer(m))
}

func (m signalMask) write(tid int) error {
	return ptrace(unix.PTRACE_SETSIGMASK, tid, unsafe.Sizeof(m), unsafe.Pointer(&m))
}

// isSyscallStop reports whether a thread stopped at the entry or exit of a system call. It
// needs PTRACE_O_TRACESYSGOOD.
func isSyscallStop(status unix.WaitStatus) bool {
	return status.StopSignal() == unix.SIGTRAP|0x80
}
