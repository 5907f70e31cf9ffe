package inject

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests that x/sys/unix has no function for.
const (
	ptraceGetSigmask           = 0x420a
	ptraceSetSigmask           = 0x420b
	ptraceGetRseqConfiguration = 0x420f
)

func ptrace(request, tid int, address uintptr, data unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), address, uintptr(data), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// signalMask is a set of blocked signals as the kernel has it: bit n-1 is
// signal n. The kernel keeps SIGKILL and SIGSTOP out of it.
type signalMask uint64

const allSignals = ^signalMask(0)

// read returns the mask that the thread itself has set. In ppoll, sigsuspend
// and the like, that is the one to be put back after the call: the one of the
// call is set again when the call is restarted.
func (m *signalMask) read(tid int) error {
	return ptrace(ptraceGetSigmask, tid, unsafe.Sizeof(*m), unsafe.Pointer(m))
}

func (m signalMask) write(tid int) error {
	return ptrace(ptraceSetSigmask, tid, unsafe.Sizeof(m), unsafe.Pointer(&m))
}

// isSyscallStop tells the stops at a system call's entry and exit, given
// PTRACE_O_TRACESYSGOOD.
func isSyscallStop(status unix.WaitStatus) bool {
	return status.StopSignal() == unix.SIGTRAP|0x80
}
