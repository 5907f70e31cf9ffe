package inject

import (
	"encoding/base64"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MarshalText encodes the registers as raw bytes, which takes a third of the room that
// named fields would: a job may have thousands of threads.
func (r registers) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, r.bytes()), nil
}

// UnmarshalText decodes what MarshalText has encoded.
func (r *registers) UnmarshalText(text []byte) error {
	data, err := base64.StdEncoding.DecodeString(string(text))
	if err != nil {
		return fmt.Errorf("registers: %w", err)
	}
	if len(data) != len(r.bytes()) {
		return fmt.Errorf("registers of %d bytes, want %d", len(data), len(r.bytes()))
	}
	copy(r.bytes(), data)
	return nil
}

// calling returns registers with which a thread makes a system call by the instruction at an address.
func (r registers) calling(address, number uint64, arguments ...uint64) registers {
	r.setCall(address, number)
	for i, value := range arguments {
		r.setArgument(i, value)
	}
	return r
}

func (r *registers) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(r)), unsafe.Sizeof(*r))
}

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
