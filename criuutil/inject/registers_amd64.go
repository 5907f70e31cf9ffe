package inject

import (
	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// syscallInstruction is what a thread executes to enter the kernel.
var syscallInstruction = [...]byte{0x0f, 0x05}

const instructionAlignment = 1 // bytes

// registers of a thread. In a thread that was stopped in a system call, Rax
// holds the kernel's own word on how to restart it (ERESTARTSYS and the like)
// and Orig_rax its number: the kernel acts on both when the thread next leaves
// for user space, so put back together they restart the call.
type registers unix.PtraceRegs

func (r *registers) read(tid int) error {
	return unix.PtraceGetRegs(tid, (*unix.PtraceRegs)(r))
}

func (r *registers) write(tid int) error {
	return unix.PtraceSetRegs(tid, (*unix.PtraceRegs)(r))
}

// native reports whether it is a 64-bit task: a 32-bit one numbers its system
// calls differently.
func (r *registers) native() bool {
	const userCS64 = 0x33 // __USER_CS
	return r.Cs == userCS64
}

func (r *registers) pc() uint64 { return r.Rip }

func (r *registers) setPC(address uint64) { r.Rip = address }

// calling returns the registers with which a thread makes a system call by the
// instruction at address. Orig_rax says that the thread is in no system call:
// whatever is in Rax, there is none to restart.
func (r registers) calling(address uint64, number, a, b, c uint64) registers {
	r.Rip, r.Rax, r.Orig_rax = address, number, ^uint64(0)
	r.Rdi, r.Rsi, r.Rdx = a, b, c
	return r
}

// A system call leaves all registers but three alone, which are put back.
const onlyInCall = false

// inCall reports whether the thread was stopped in a system call, or is at or right
// behind one: criu gives Orig_rax back to nobody.
func (r *registers) inCall(process *proc.Process) (bool, error) {
	if r.Orig_rax != ^uint64(0) {
		return true, nil
	}
	if at, err := isSyscallInstruction(process, r.Rip); at || err != nil {
		return at, err
	}
	return isSyscallInstruction(process, r.Rip-uint64(len(syscallInstruction)))
}

// number is that of the system call in whose stop the thread is.
func (r *registers) number() uint64 { return r.Orig_rax }

func (r *registers) argument(i int) uint64 { return *r.arguments()[i] }

func (r *registers) setArgument(i int, value uint64) { *r.arguments()[i] = value }

func (r *registers) arguments() [6]*uint64 {
	return [...]*uint64{&r.Rdi, &r.Rsi, &r.Rdx, &r.R10, &r.R8, &r.R9}
}

// result is what the system call has returned, as in the kernel: an errno is
// negative.
func (r *registers) result() int64 { return int64(r.Rax) }

// restartAfterRestore makes registers that were read before a dump fit for the
// process that was restored from it: what the kernel still had to do about an
// interrupted system call it does not know there. As criu does it.
func (r *registers) restartAfterRestore() {
	const errRestartSys, errRestartNoIntr, errRestartNoHand, errRestartBlock = 512, 513, 514, 516 // linux/errno.h
	if int64(r.Orig_rax) < 0 {
		return
	}
	switch -r.result() {
	case errRestartSys, errRestartNoIntr, errRestartNoHand:
		r.Rax = r.Orig_rax
		r.Rip -= uint64(len(syscallInstruction))
	case errRestartBlock: // how much of its time is left nobody knows
		r.Rax = ^uint64(0) - uint64(unix.EINTR) + 1
	}
	r.Orig_rax = ^uint64(0)
}
