package inject

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// syscallInstruction is what a thread executes to enter the kernel: svc #0.
var syscallInstruction = [...]byte{0x01, 0x00, 0x00, 0xd4}

const instructionAlignment = 4 // bytes

// registers holds the registers of a thread. The kernel prepares the restart of an
// interrupted system call before a tracer sees the registers: the program counter is at the
// svc again. Two things are lost. The registers do not say that a sleep was to be resumed
// with the rest of its time, so it starts anew. Nor do they say that a signal handler was
// to make the call fail with EINTR: if a signal arrives while the thread is borrowed, the
// call is restarted after the handler.
type registers unix.PtraceRegs

func (r *registers) read(tid int) error { return r.transfer(unix.PTRACE_GETREGSET, tid) }

func (r *registers) write(tid int) error { return r.transfer(unix.PTRACE_SETREGSET, tid) }

func (r *registers) transfer(request, tid int) error {
	const generalRegisters = 1 // NT_PRSTATUS
	vector := unix.Iovec{Base: (*byte)(unsafe.Pointer(r))}
	vector.SetLen(int(unsafe.Sizeof(*r)))
	return ptrace(request, tid, generalRegisters, unsafe.Pointer(&vector))
}

// native reports whether the thread is a 64-bit task. For a 32-bit task the kernel fills in
// fewer registers, and the stack pointer stays 0.
func (r *registers) native() bool { return r.Sp != 0 }

func (r *registers) pc() uint64 { return r.Pc }

func (r *registers) setPC(address uint64) { r.Pc = address }

// setCall has a thread make a system call by the instruction at address. It does not set x7: at the
// stops of a system call the kernel shows something else there and ignores what is written.
func (r *registers) setCall(address, number uint64) { r.Pc, r.Regs[8] = address, number }

// A system call clears the parts of the vector registers beyond 128 bits (SVE). So only
// threads that are in a system call, or right before one, can be borrowed.
const onlyInCall = true

// inCall reports whether the thread was stopped in a system call, or is right before one.
func (r *registers) inCall(process *proc.Process) (bool, error) {
	return isSyscallInstruction(process, r.Pc)
}

// callNumber returns the number of the system call that a thread makes next that is at an
// instruction that enters the kernel.
func (r *registers) callNumber() uint64 { return r.Regs[8] }

// auditArchitecture is how seccomp filters know the architecture.
const auditArchitecture = unix.AUDIT_ARCH_AARCH64

// number returns the number of the system call at whose stop the thread is.
func (r *registers) number() uint64 { return r.Regs[8] }

func (r *registers) argument(i int) uint64 { return r.Regs[i] }

func (r *registers) setArgument(i int, value uint64) { r.Regs[i] = value }

// result returns the result of the system call as the kernel gives it: an errno is
// negative.
func (r *registers) result() int64 { return int64(r.Regs[0]) }

// keepWaiting does nothing: the kernel has already prepared the restart of a call. A wait of which only the kernel knows until
// when ends with EINTR.
func (r *registers) keepWaiting() {}

// waits reports whether the thread was stopped in a system call that waits. Only such threads can be parked here.
func (r *registers) waits() bool { return true }
