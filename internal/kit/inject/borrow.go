package inject

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// Borrowed are threads of a stopped process that make system calls for us. The process,
// whose threads are in the group-stop, does not notice: we write nothing to its code or
// stacks, no signal is sent or taken, and each thread later continues the system call in
// which it was stopped as if nothing had happened.
//
// We make a thread call by its registers alone. We point them at an instruction of the
// process's own vdso that enters the kernel, and run the thread from there to the exit of
// the call (PTRACE_SYSCALL), where it stops again.
//
// The borrower may be killed at any point. The kernel then detaches from the threads, and
// they fall back into the group-stop without executing an instruction in user space: each
// thread has a pending stop that takes effect when it next leaves the kernel, and it is
// either in the kernel or at the instruction that enters it. But a thread may then still
// have our registers and have its signals blocked. So Borrow writes registers and signal
// masks to a file before it changes them, and [ReturnThreads] puts them back. Until then
// nobody may send the process SIGCONT. A program that continues a process from which
// threads may have been borrowed must call ReturnThreads first.
type Borrowed struct{ loan *loan }

// ErrNotStopped says that a process is not, or no longer, in the group-stop.
var ErrNotStopped = errors.New("the process is not stopped, or was sent SIGCONT")

// Borrow seizes threads of a stopped process. All threads of the process must be in the
// group-stop, except those that another tracer lets run; these cannot be borrowed. Borrow
// writes the registers and signal masks of the threads to the file saved, for
// [ReturnThreads]. The file must not exist yet, and is meaningless after a reboot. If
// saved is "", there is no file, and the process is lost if we are killed before Return.
// This is meant for a process that would be lost without the loan.
//
// A thread has one tracer, so criu, a debugger or a [Tracer] must not trace it at the same
// time. The process must not be in a frozen control group of cgroup v1, where seizing a
// thread never returns.
//
// Borrow fails with [proc.ErrGone] if the process has ended, and with [ErrNotStopped] if it
// is not in the group-stop. A failed Borrow changes nothing.
func Borrow(ctx context.Context, pid int, tids []int, saved string) (*Borrowed, error) {
	return lend(ctx, pid, tids, saved, func(string) {})
}

// lend is Borrow. It calls at with the name of each point at which it matters what a
// killed borrower leaves behind.
func lend(ctx context.Context, pid int, tids []int, saved string, at func(string)) (*Borrowed, error) {
	process, err := proc.Open(pid) // fails for a zombie
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
		return nil, fmt.Errorf("borrow threads of process %d: %w", pid, err)
	}
	return &Borrowed{l}, nil
}

// startTaking starts a loan of threads that are then to be taken. find returns the address
// of the instruction that they execute to enter the kernel.
func startTaking(process *proc.Process, tids []int, saved string, find func(*proc.Process) (uint64, error), at func(string)) (*loan, error) {
	pid := process.PID
	if len(tids) == 0 {
		return nil, fmt.Errorf("process %d: no threads to borrow were given", pid)
	}
	if _, err := os.Lstat(saved); err == nil {
		return nil, fmt.Errorf("process %d: %s holds the registers of threads that a killed cucriu had borrowed: do not remove it, and run cucriu recover first", pid, saved)
	} else if !errors.Is(err, fs.ErrNotExist) { // the empty name gives fs.ErrNotExist, too
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

// Madvise advises the kernel on ranges of the process's memory (madvise(2)). The ranges
// must consist of whole pages. Advice that works page by page (MADV_DONTNEED,
// MADV_POPULATE_WRITE) is given by all threads in parallel: the ranges are cut into slices,
// and each thread takes the next slice when its call has returned.
//
// The error names the first call that failed and wraps its errno. Other slices may have
// been advised by then. The error is [proc.ErrGone] if the process was killed meanwhile.
// When ctx ends, calls under way continue, and Return or the next call waits for them.
func (b *Borrowed) Madvise(ctx context.Context, ranges []proc.Range, advice int) error {
	var slice uint64
	switch advice {
	case unix.MADV_DONTNEED, unix.MADV_DONTNEED_LOCKED:
		slice = 64 << 20
	case unix.MADV_POPULATE_WRITE:
		slice = 16 << 20 // small, so that memory gets ready in order: somebody may be filling it behind us
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
			return fmt.Errorf("process %d: %v of %#x-%#x: the range is not page-aligned: %w", b.loan.pid, what, r.Start, r.End, unix.EINVAL)
		}
	}
	return b.loan.do(func() error { return b.loan.callAll(ctx, ranges, what) })
}

// Return puts registers and signal masks back, removes the file and releases the threads,
// which fall back into the group-stop. It succeeds if the process has died, and if it is
// called a second time.
//
// Return fails, for example, if ctx ends while a call is still under way. With a file, it
// then releases the threads as if we had been killed, and ReturnThreads returns them.
// Without a file, they stay borrowed.
func (b *Borrowed) Return(ctx context.Context) error {
	l := b.loan
	err := l.do(func() error { return l.giveBack(ctx) })
	if err == nil || l.saved != "" {
		<-l.done
	}
	if errors.Is(err, errTracingEnded) {
		return nil
	}
	return l.returning(err)
}

// ReturnThreads ends a parking, and cleans up after a borrower that was killed. Every thread in the
// file saved that still exists gets its registers and signal mask back, and the file is removed. If
// there is no such file, there is nothing to do. ReturnThreads waits, until ctx ends, for
// threads that are still in a long call or cannot be stopped yet.
//
// The process must still be in the group-stop. While the borrower lives, ReturnThreads
// fails, because a thread has one tracer.
func ReturnThreads(ctx context.Context, saved string) error {
	return returnSaved(ctx, saved, func(string) {})
}

func returnSaved(ctx context.Context, saved string, at func(string)) error {
	file, err := threadsKind.Read(saved)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	l := startLoan(file, saved, at)
	err = l.do(func() error { return l.takeOver(ctx) })
	<-l.done
	return l.returning(err)
}

func (l *loan) returning(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("return borrowed threads of process %d: %w", l.pid, err)
}
