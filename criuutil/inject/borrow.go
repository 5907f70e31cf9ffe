package inject

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// Borrowed are threads of a stopped process that make system calls for us. The
// process, whose threads are in the group-stop, notices nothing: not a byte of
// its code or stack is written, no signal is sent or taken, and the system call
// in which each thread was stopped goes on as it would have without us.
//
// A thread is made to call by its registers alone: they are pointed at an
// instruction that enters the kernel, of the process's own vdso, and the
// thread is run from there to the exit of the call (PTRACE_SYSCALL), where it
// stops again.
//
// Whoever borrows may be killed at any point. The kernel then lets go of the
// threads, and they fall back into the group-stop without an instruction of
// user space: each has a pending stop when it next leaves the kernel, and it is
// in the kernel, or at the instruction that enters it, when it is let go of.
// But it may be there with our registers, and with its signals blocked. So
// these are in a file before they are changed, and [ReturnBorrowed] puts them
// back. Until it has, nothing may send the process SIGCONT: whoever continues a
// process that may have been borrowed from calls ReturnBorrowed first.
type Borrowed struct{ loan *loan }

// ErrNotStopped says that a process is not in the group-stop, or not any more.
var ErrNotStopped = errors.New("the process is not stopped, or somebody has sent it SIGCONT")

// Borrow takes hold of threads of a process that is stopped: all its threads
// are in the group-stop, but for those that another tracer lets run, which
// cannot be borrowed. Their registers and signal masks are noted in the file
// saved, for [ReturnBorrowed], which must not exist yet; it means nothing after
// a reboot. Without one (""), the process is lost if we are killed meanwhile: that
// is for a process that would be lost without the loan.
//
// The kernel lets one tracer at a thread, so criu, a debugger or a [Tracer]
// must not be there at the same time; nor may the process be in a frozen
// control group of cgroup v1, in which taking hold of a thread never returns.
//
// It fails with [proc.ErrGone] if the process has ended, and with [ErrNotStopped] if it
// runs. A failed Borrow changes nothing.
func Borrow(ctx context.Context, pid int, tids []int, saved string) (*Borrowed, error) {
	return borrow(ctx, pid, tids, saved, func(string) {})
}

// borrow tells at of the points at which it matters what a death leaves behind.
func borrow(ctx context.Context, pid int, tids []int, saved string, at func(string)) (*Borrowed, error) {
	process, err := proc.Open(pid) // which tells a zombie from the living
	if err != nil {
		return nil, fmt.Errorf("borrow threads: %w", err)
	}
	defer process.Close()
	l, err := startTaking(process, tids, saved, findSyscallInstruction, at)
	if err != nil {
		return nil, err
	}
	if err := l.do(func() error { return l.take(ctx, process) }); err != nil {
		<-l.done
		return nil, err
	}
	return &Borrowed{l}, nil
}

// startTaking starts the loan of threads that are to be taken. find finds the
// instruction that they are to execute.
func startTaking(process *proc.Process, tids []int, saved string, find func(*proc.Process) (uint64, error), at func(string)) (*loan, error) {
	pid := process.PID
	if len(tids) == 0 {
		return nil, fmt.Errorf("process %d: no threads to borrow were named", pid)
	}
	if _, err := os.Lstat(saved); err == nil {
		return nil, fmt.Errorf("process %d: %s holds the registers of threads that somebody borrowed and was killed: they must be returned first", pid, saved)
	} else if !errors.Is(err, fs.ErrNotExist) { // which the empty name does not either
		return nil, fmt.Errorf("process %d: borrow threads: %w", pid, err)
	}
	instruction, err := find(process)
	if err != nil {
		return nil, err
	}
	var threads []savedThread
	for _, tid := range slices.Compact(slices.Sorted(slices.Values(tids))) {
		threads = append(threads, savedThread{TID: tid})
	}
	return startLoan(savedThreads{PID: pid, Instruction: instruction, Threads: threads}, saved, at), nil
}

// Madvise advises the kernel on ranges of the process's memory (madvise(2)). What
// it does to each page (MADV_DONTNEED, MADV_POPULATE_WRITE) all threads do at once:
// the ranges are cut into slices, and each thread takes the next when its call has
// returned. Ranges are of whole pages.
//
// The error names the first call that failed, and is its errno: other slices may
// have been advised. It is [proc.ErrGone] if the process was killed meanwhile. When ctx
// ends, calls that are under way go on, and Return or the next call waits for them.
func (b *Borrowed) Madvise(ctx context.Context, ranges []proc.Range, advice int) error {
	var slice uint64
	switch advice {
	case unix.MADV_DONTNEED, unix.MADV_DONTNEED_LOCKED:
		slice = 64 << 20
	case unix.MADV_POPULATE_WRITE:
		slice = 16 << 20 // from the front on, closely: somebody may be following
	}
	return b.call(ctx, ranges, remoteCall{"madvise", unix.SYS_MADVISE, advice, slice})
}

// Mprotect sets the protection of ranges of the process's memory (mprotect(2)).
// See [Borrowed.Madvise] for its errors.
func (b *Borrowed) Mprotect(ctx context.Context, ranges []proc.Range, protection int) error {
	return b.call(ctx, ranges, remoteCall{"mprotect", unix.SYS_MPROTECT, protection, 0})
}

func (b *Borrowed) call(ctx context.Context, ranges []proc.Range, what remoteCall) error {
	page := uint64(os.Getpagesize())
	for _, r := range ranges {
		if r.Start%page != 0 || r.End%page != 0 || r.End < r.Start {
			return fmt.Errorf("process %d: %v of %#x-%#x, which are no whole pages: %w", b.loan.pid, what, r.Start, r.End, unix.EINVAL)
		}
	}
	return b.loan.do(func() error { return b.loan.callAll(ctx, ranges, what) })
}

// Return puts registers and signal masks back, removes the file, and lets go of
// the threads: they fall back into the group-stop. A process that has died, or
// a second Return, is no error. After an error, such as the end of ctx while a
// call is still under way, the threads are let go of as if we had been killed, and
// ReturnBorrowed is the way back; without a file they are as borrowed as before.
func (b *Borrowed) Return(ctx context.Context) error {
	err := b.loan.do(func() error { return b.loan.giveBack(ctx) })
	if err == nil || b.loan.saved != "" {
		<-b.loan.done
	}
	if errors.Is(err, errTracingEnded) {
		return nil
	}
	return err
}

// ReturnBorrowed is for whoever comes after a borrower that was killed: every
// thread in the file saved that still is the same thread gets its registers and
// signal mask back, and the file is removed. Nothing is to be done if there is
// no such file. A thread that is still inside a long call is waited for until
// ctx ends, and so is one that cannot be stopped.
//
// The process must still be in the group-stop. While the borrower lives, it
// fails: a thread has one tracer.
func ReturnBorrowed(ctx context.Context, saved string) error {
	return returnBorrowed(ctx, saved, func(string) {})
}

func returnBorrowed(ctx context.Context, saved string, at func(string)) error {
	file, err := readSavedThreads(saved)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	l := startLoan(file, saved, at)
	err = l.do(func() error { return l.takeOver(ctx) })
	<-l.done
	return err
}
