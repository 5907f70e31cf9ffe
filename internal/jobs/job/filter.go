package job

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// x32 is the bit that marks a system call of the x32 ABI in its number.
const x32 = 0x40000000

// jobFilter is the seccomp filter of a job: io_uring_setup fails with ENOSYS, as on a kernel
// without io_uring, and every other call is allowed. criu cannot dump an io_uring, and
// libraries that can use one do without then.
//
// The call has the same number for every architecture whose programs an x86-64 or arm64
// kernel runs (x86-64, x32, i386; arm64, arm), so the filter need not look at it.
func jobFilter() []unix.SockFilter {
	const number = 0 // its offset in struct seccomp_data
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: ^uint32(x32)},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_IO_URING_SETUP, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
}

var errFilter = errors.New("seccomp filter")

// setFilter puts the calling thread under a seccomp filter for ever, and with it what the
// thread executes and starts. Without CAP_SYS_ADMIN the kernel demands that set-user-id
// programs gain nothing below it. With it they go on working: a job of root may run sudo.
func setFilter(program []unix.SockFilter) error {
	err := trySetFilter(program)
	if errors.Is(err, unix.EACCES) {
		if err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err == nil {
			err = trySetFilter(program)
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errFilter, err)
	}
	return nil
}

func trySetFilter(program []unix.SockFilter) error {
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return errno
	}
	return nil
}
