package inject

import (
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// syscallInstruction is what a thread executes to enter the kernel.
var syscallInstruction = [...]byte{0x0f, 0x05}

const instructionAlignment = 1 // bytes

// registers holds the registers of a thread. In a thread that was stopped in a system call,
// Orig_rax holds the number of the call and Rax how the kernel is to restart it
// (ERESTARTSYS and the like). The kernel acts on both when the thread next returns to user
// space, so putting both back restarts the call.
type registers unix.PtraceRegs

func (r *registers) read(tid int) error {
	return unix.PtraceGetRegs(tid, (*unix.PtraceRegs)(r))
}

func (r *registers) write(tid int) error {
	return unix.PtraceSetRegs(tid, (*unix.PtraceRegs)(r))
}

// native reports whether the thread is a 64-bit task. A 32-bit task numbers its system
// calls differently.
func (r *registers) native() bool {
	const userCS64 = 0x33 // __USER_CS
	return r.Cs == userCS64
}

func (r *registers) pc() uint64 { return r.Rip }

func (r *registers) setPC(address uint64) { r.Rip = address }

// setCall has a thread make a system call by the instruction at address. Orig_rax says that the
// thread is not in a system call, so that the kernel restarts none, whatever Rax holds.
func (r *registers) setCall(address, number uint64) {
	r.Rip, r.Rax, r.Orig_rax = address, number, ^uint64(0)
}

// A system call changes only three registers, which we put back. So a thread need not be in
// a call to be borrowed.
const onlyInCall = false

// inCall reports whether the thread was stopped in a system call, or is at or right behind
// one. criu does not restore Orig_rax, so the instructions count, too.
func (r *registers) inCall(process *proc.Process) (bool, error) {
	if r.Orig_rax != ^uint64(0) {
		return true, nil
	}
	if at, err := isSyscallInstruction(process, r.Rip); at || err != nil {
		return at, err
	}
	return isSyscallInstruction(process, r.Rip-uint64(len(syscallInstruction)))
}

// callNumber returns the number of the system call that a thread makes next that is at an
// instruction that enters the kernel.
func (r *registers) callNumber() uint64 { return r.Rax }

// auditArchitecture is how seccomp filters know the architecture.
const auditArchitecture = unix.AUDIT_ARCH_X86_64

// number returns the number of the system call at whose stop the thread is.
func (r *registers) number() uint64 { return r.Orig_rax }

func (r *registers) argument(i int) uint64 { return *r.arguments()[i] }

func (r *registers) setArgument(i int, value uint64) { *r.arguments()[i] = value }

func (r *registers) arguments() [6]*uint64 {
	return [...]*uint64{&r.Rdi, &r.Rsi, &r.Rdx, &r.R10, &r.R8, &r.R9}
}

// result returns the result of the system call as the kernel gives it: an errno is
// negative.
func (r *registers) result() int64 { return int64(r.Rax) }

// These are how the kernel restarts an interrupted system call (linux/errno.h).
const errRestartSys, errRestartNoIntr, errRestartNoHand, errRestartBlock = 512, 513, 514, 516

// waits reports whether the thread was stopped in a system call that waits.
func (r *registers) waits() bool {
	return int64(r.Orig_rax) >= 0 && slices.Contains([]int64{errRestartSys, errRestartNoIntr, errRestartNoHand, errRestartBlock}, -r.result())
}

// keepWaiting has a thread go on with a wait of which only the kernel knows until when (poll, nanosleep, a futex). It forgets
// that if criu dumps a process (for its first thread, which runs criu's code) or restores it, and the call would fail with
// EINTR, of which programs end (tail -f). A wait without end, or until a point in time, can be begun anew instead. The kernel
// does that, unless the program has a handler for a signal that has come meanwhile: then the call fails as it would without us.
func (r *registers) keepWaiting() {
	const bitset, private, realtime = 9, 128, 256 // FUTEX_WAIT_BITSET, FUTEX_PRIVATE_FLAG, FUTEX_CLOCK_REALTIME
	endless := r.Orig_rax == unix.SYS_POLL && int32(r.Rdx) < 0
	until := r.Orig_rax == unix.SYS_FUTEX && r.Rsi&^(private|realtime) == bitset
	if -r.result() == errRestartBlock && (endless || until) {
		r.Rax = ^uint64(0) - errRestartNoHand + 1
	}
}
