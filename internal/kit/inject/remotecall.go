package inject

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// remoteCall is a system call on a range of memory.
type remoteCall struct {
	name     string
	number   uint64
	argument int // the third one, after address and size
	// slice is the largest size, in bytes, of one call if the call works page by page. It
	// is 0 if the call works on the mapping and is made once for each range.
	slice uint64
}

func (c remoteCall) String() string { return fmt.Sprintf("%s(%d)", c.name, c.argument) }

// callAll makes the threads call on all of the ranges.
func (l *loan) callAll(ctx context.Context, ranges []proc.Range, what remoteCall) error {
	slices := slices.Clone(ranges)
	if what.slice > 0 {
		slices = cut(ranges, len(l.threads), what.slice)
	}
	var failed error
	err := l.until(ctx, func() bool {
		busy := false
		for _, t := range l.threads {
			var err error
			if t.state == ended || t.state == returned && t.slice != (proc.Range{}) {
				if _, err = l.leave(t); err != nil {
					err = fmt.Errorf("%v of %#x-%#x in thread %d of process %d: %w", what, t.slice.Start, t.slice.End, t.TID, l.pid, err)
				}
				t.slice = proc.Range{}
			}
			if failed = cmp.Or(failed, err); failed == nil && (t.state == held || t.state == returned) && len(slices) > 0 {
				t.slice, slices = slices[0], slices[1:]
				if err := l.enter(t, what.number, t.slice.Start, t.slice.Size(), uint64(what.argument)); err != nil {
					failed = fmt.Errorf("make thread %d of process %d call %v: %w", t.TID, l.pid, what, err)
				}
			}
			busy = busy || t.state == called || t.state == inside
		}
		return !busy
	})
	for _, t := range l.threads {
		t.slice = proc.Range{}
	}
	if err != nil {
		return fmt.Errorf("%v in threads of process %d has not finished: %w", what, l.pid, err)
	}
	return failed
}

// enter lets a thread that is in one of our stops make a system call.
func (l *loan) enter(t *borrowedThread, number uint64, arguments ...uint64) error {
	regs := t.Registers.calling(l.instruction, number, arguments...)
	err := regs.write(t.TID)
	if err == nil {
		err = unix.PtraceSyscall(t.TID, 0)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	t.state = called // if it was killed, the next wait reports it
	return nil
}

// leave returns what the call of a thread has returned.
func (l *loan) leave(t *borrowedThread) (uint64, error) {
	if t.state == ended {
		return 0, proc.ErrGone
	}
	var regs registers
	err := regs.read(t.TID)
	result := regs.result()
	switch {
	case errors.Is(err, unix.ESRCH):
		err = proc.ErrGone
	case err == nil && -4096 < result && result < 0: // linux/err.h
		err = unix.Errno(-result)
	}
	return uint64(result), cmp.Or(err, l.idle(t))
}

// idle points a thread whose call has returned at the endless wait. We may be killed before
// the thread makes its next call or is returned, and somebody may end the group-stop with
// SIGCONT. Without the wait the thread would then continue behind the instruction that made
// the call, in the middle of code that it never entered.
func (l *loan) idle(t *borrowedThread) error {
	if err := l.pointAtWait(t); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("thread %d of process %d: %w", t.TID, l.pid, err)
	}
	return nil
}

// hugePage is the alignment of slices, so that none splits a huge page.
const hugePage = 2 << 20 // bytes

// cut cuts ranges into slices for a number of threads. The slices are small enough to keep
// all threads busy until the end, and large enough that a thread's stops between two of
// them cost little.
func cut(ranges []proc.Range, threads int, largest uint64) []proc.Range {
	const perThread = 4
	size := proc.Total(ranges) / uint64(perThread*threads) / hugePage * hugePage
	size = min(max(size, hugePage), largest)
	var slices []proc.Range
	for _, r := range ranges {
		for start := r.Start; start < r.End; {
			end := min(r.End, (start+size)/hugePage*hugePage)
			slices = append(slices, proc.Range{Start: start, End: end})
			start = end
		}
	}
	return slices
}

// Descriptor is an open descriptor of a process.
type Descriptor struct {
	FD          int
	CloseOnExec bool
}

// Disconnect takes open files away from the process. Each descriptor becomes one of
// /dev/null, so that its number stays taken, and each of the ranges becomes inaccessible
// memory. One borrowed thread makes all the calls. The error is [proc.ErrGone] if the process
// was killed meanwhile.
//
// After an error, or if we are killed, a part of it is done. It can be repeated.
func (b *Borrowed) Disconnect(ctx context.Context, descriptors []Descriptor, ranges []proc.Range) error {
	process, err := proc.Open(b.loan.pid)
	if err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	defer process.Close()
	return b.loan.do(func() error {
		i := slices.IndexFunc(b.loan.threads, func(t *borrowedThread) bool { return t.state == held || t.state == returned })
		if i < 0 {
			return fmt.Errorf("disconnect process %d: no thread can make calls: %w", b.loan.pid, proc.ErrGone)
		}
		caller := caller{ctx: ctx, loan: b.loan, thread: b.loan.threads[i]}
		if err := caller.disconnect(process, descriptors, ranges); err != nil {
			return fmt.Errorf("disconnect process %d: %w", b.loan.pid, err)
		}
		return nil
	})
}

// caller makes system calls in one borrowed thread.
type caller struct {
	ctx    context.Context
	loan   *loan
	thread *borrowedThread
}

// do makes one call, waits for it, and returns its result.
func (c caller) do(name string, number uint64, arguments ...uint64) (result uint64, err error) {
	l, t := c.loan, c.thread
	err = l.enter(t, number, arguments...)
	if err == nil {
		err = l.until(c.ctx, func() bool { return t.state == returned || t.state == ended })
	}
	if err == nil {
		result, err = l.leave(t)
	}
	if err != nil {
		return 0, fmt.Errorf("%s in thread %d: %w", name, t.TID, err)
	}
	return result, nil
}

func (c caller) disconnect(process *proc.Process, descriptors []Descriptor, ranges []proc.Range) error {
	if len(descriptors) > 0 {
		if err := c.replaceDescriptors(process, descriptors); err != nil {
			return err
		}
	}
	for _, r := range ranges {
		const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE | unix.MAP_FIXED
		if _, err := c.do("mmap", unix.SYS_MMAP, r.Start, r.Size(), unix.PROT_NONE, flags, noDescriptor, 0); err != nil {
			return err
		}
	}
	return nil
}

const noDescriptor = ^uint64(0) // the descriptor of an anonymous mapping

func (c caller) replaceDescriptors(process *proc.Process, descriptors []Descriptor) error {
	null, err := c.openNull(process, descriptors[0])
	if err != nil {
		return err
	}
	for _, d := range descriptors {
		if uint64(d.FD) == null {
			continue // it was closed to make room
		}
		_, err := c.do("dup3", unix.SYS_DUP3, null, uint64(d.FD), d.flag())
		if errors.Is(err, unix.EBADF) { // above the limit of descriptors: nothing else gets that number
			_, err = c.do("close", unix.SYS_CLOSE, uint64(d.FD))
		}
		if err != nil {
			return err
		}
	}
	if null == uint64(descriptors[0].FD) {
		return nil
	}
	_, err = c.do("close", unix.SYS_CLOSE, null)
	return err
}

// openNull opens /dev/null in the process. If the process has no descriptor left, it closes
// first. The path lies in a page of its own for so long.
func (c caller) openNull(process *proc.Process, first Descriptor) (uint64, error) {
	path := []byte(os.DevNull + "\x00")
	null := uint64(0)
	err := c.with(process, path, func(path uint64) (err error) {
		if null, err = c.openPath(path, first); err == nil {
			err = requireNull(process.PID, null)
		}
		return err
	})
	return null, err
}

// with does something while data is in a page of the process.
func (c caller) with(process *proc.Process, data []byte, do func(address uint64) error) error {
	page := uint64(os.Getpagesize())
	const protection, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	scratch, err := c.do("mmap", unix.SYS_MMAP, 0, page, protection, flags, noDescriptor, 0)
	if err != nil {
		return err
	}
	if err = process.WriteMemory(data, scratch); err == nil {
		err = do(scratch)
	}
	_, unmapErr := c.do("munmap", unix.SYS_MUNMAP, scratch, page)
	return cmp.Or(err, unmapErr)
}

// Call has a borrowed thread, or any of them if tid is 0, make a system call. call returns its number and arguments,
// and is told where in the process data is meanwhile.
func (b *Borrowed) Call(
	ctx context.Context, process *proc.Process, tid int, data []byte, call func(data uint64) []uint64,
) error {
	return b.loan.do(func() error {
		i := slices.IndexFunc(b.loan.threads, func(t *borrowedThread) bool {
			return (t.state == held || t.state == returned) && (tid == 0 || t.TID == tid)
		})
		if i < 0 {
			return fmt.Errorf("thread %d of process %d: %w", tid, b.loan.pid, proc.ErrGone)
		}
		c := caller{ctx: ctx, loan: b.loan, thread: b.loan.threads[i]}
		do := func(data uint64) error {
			what := call(data)
			_, err := c.do(fmt.Sprintf("system call %d", what[0]), what[0], what[1:]...)
			return err
		}
		if data == nil {
			return do(0)
		}
		return c.with(process, data, do)
	})
}

func (c caller) openPath(path uint64, first Descriptor) (uint64, error) {
	here := int64(unix.AT_FDCWD)
	open := func() (uint64, error) {
		return c.do("openat", unix.SYS_OPENAT, uint64(here), path, unix.O_RDWR|first.flag())
	}
	null, err := open()
	if !errors.Is(err, unix.EMFILE) {
		return null, err
	}
	if _, err := c.do("close", unix.SYS_CLOSE, uint64(first.FD)); err != nil {
		return 0, err
	}
	return open()
}

// requireNull fails if a descriptor is not one of /dev/null: the process may have a /dev of
// its own.
func requireNull(pid int, fd uint64) error {
	null, err := proc.IsNull(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
	switch {
	case err != nil:
		return proc.GoneOr(pid, err)
	case !null:
		return fmt.Errorf("its %s is another file", os.DevNull)
	}
	return nil
}

func (d Descriptor) flag() uint64 {
	if d.CloseOnExec {
		return unix.O_CLOEXEC
	}
	return 0
}
