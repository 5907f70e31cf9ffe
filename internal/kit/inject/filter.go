package inject

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// ErrFiltered says that a thread is under a seccomp filter that does not let it make a
// system call of ours, or that cannot be read or suspended.
var ErrFiltered = errors.New("its seccomp filter is in the way")

// ErrForbidden is an [ErrFiltered] of a filter that was read.
var ErrForbidden = errors.New("it answers")

// requireWaitAllowed fails with [ErrFiltered] unless the seccomp filters of every thread
// allow the wait of a parked thread. The threads make that call when nobody traces them, so
// their filters judge it. seccomp says that the first thread is under seccomp. It is strict
// then if it has no filter: it may only read and write.
func (l *loan) requireWaitAllowed(seccomp bool) error {
	for _, t := range l.threads {
		regs := l.waiting(t)
		filtered, err := requireAllowed(t.TID, regs.seccompData())
		if err == nil && !filtered && seccomp && t.TID == l.pid {
			err = fmt.Errorf("%w: it is in strict mode", ErrFiltered)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("thread %d of process %d: %w", t.TID, l.pid, err)
		}
	}
	return nil
}

// Call is a system call with its arguments.
type Call struct {
	Number    int
	Arguments []uint64
}

// RequireAllowed fails with [ErrFiltered] unless the threads that the tracer lets run may make each of some system
// calls. It stops them: only Release can follow.
func (t *Tracer) RequireAllowed(ctx context.Context, calls ...Call) error {
	return t.loan.do(func() error {
		if err := t.loan.hold(ctx); err != nil {
			return err
		}
		for _, thread := range t.loan.threads {
			for _, call := range calls {
				var regs registers
				regs.setCall(0, uint64(call.Number))
				for i, value := range call.Arguments {
					regs.setArgument(i, value)
				}
				if _, err := requireAllowed(thread.TID, regs.seccompData()); err != nil {
					return fmt.Errorf("thread %d, system call %d: %w", thread.TID, call.Number, err)
				}
			}
		}
		return nil
	})
}

// RequireAllowed is [Tracer.RequireAllowed] for threads that run, of which some may be under no filter.
func RequireAllowed(ctx context.Context, tids []int, calls ...Call) error {
	tids = slices.DeleteFunc(slices.Clone(tids), func(tid int) bool {
		status, err := proc.ReadStatus(tid)
		return err == nil && !status.Seccomp
	})
	if len(tids) == 0 {
		return nil
	}
	tracer := NewTracer()
	err := tracer.Run(tids...)
	if err == nil {
		err = tracer.RequireAllowed(ctx, calls...)
	}
	return errors.Join(err, tracer.Release(ctx))
}

// seccompData is what a filter sees, struct seccomp_data, of a thread that makes a system
// call with these registers. A [bpf.VM] loads words in network byte order.
func (r *registers) seccompData() []byte {
	data := binary.BigEndian.AppendUint32(nil, uint32(r.callNumber()))
	data = binary.BigEndian.AppendUint32(data, auditArchitecture)
	wide := []uint64{r.pc() + uint64(len(syscallInstruction))}
	for i := range 6 {
		wide = append(wide, r.argument(i))
	}
	for _, value := range wide { // its low half is the first word
		data = binary.BigEndian.AppendUint32(data, uint32(value))
		data = binary.BigEndian.AppendUint32(data, uint32(value>>32))
	}
	return data
}

// requireAllowed fails unless every filter of a thread allows a call. It tells whether there
// are any.
func requireAllowed(tid int, data []byte) (filtered bool, err error) {
	for i := 0; ; i++ {
		program, err := seccompFilter(tid, i)
		switch {
		case i == 0 && errors.Is(err, unix.EINVAL):
			return false, nil
		case i > 0 && errors.Is(err, unix.ENOENT):
			return true, nil // it has no more
		case errors.Is(err, unix.ESRCH):
			return true, err
		case err != nil:
			return true, fmt.Errorf("%w, and cannot be read: %w", ErrFiltered, err)
		}
		answer, err := judge(program, data)
		if err != nil {
			return true, fmt.Errorf("%w, and could not be evaluated: %w", ErrFiltered, err)
		}
		if action := answer & unix.SECCOMP_RET_ACTION_FULL; action != unix.SECCOMP_RET_ALLOW && action != unix.SECCOMP_RET_LOG {
			return true, fmt.Errorf("%w: %w %#x", ErrFiltered, ErrForbidden, answer)
		}
	}
}

// judge runs a filter as the kernel does, and returns its answer.
func judge(program []bpf.RawInstruction, data []byte) (uint32, error) {
	instructions, _ := bpf.Disassemble(program)
	vm, err := bpf.NewVM(instructions)
	if err != nil {
		return 0, err
	}
	answer, err := vm.Run(data)
	return uint32(answer), err
}

// seccompFilter reads a filter of a thread that is held. This needs CAP_SYS_ADMIN, and a
// caller that is under no filter itself.
func seccompFilter(tid, index int) ([]bpf.RawInstruction, error) {
	length, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(tid), uintptr(index), 0, 0, 0)
	if errno != 0 {
		return nil, errno
	}
	if length == 0 {
		return nil, unix.ENODATA
	}
	program := make([]bpf.RawInstruction, length) // a filter never changes; its layout is struct sock_filter's
	err := ptrace(unix.PTRACE_SECCOMP_GET_FILTER, tid, uintptr(index), unsafe.Pointer(&program[0]))
	return program, err
}
