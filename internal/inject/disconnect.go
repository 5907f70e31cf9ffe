package inject

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
)

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
	page := uint64(os.Getpagesize())
	const protection, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	scratch, err := c.do("mmap", unix.SYS_MMAP, 0, page, protection, flags, noDescriptor, 0)
	if err != nil {
		return 0, err
	}
	null, err := uint64(0), process.WriteMemory(path, scratch)
	if err == nil {
		null, err = c.openPath(scratch, first)
	}
	if err == nil {
		err = requireNull(process.PID, null)
	}
	_, unmapErr := c.do("munmap", unix.SYS_MUNMAP, scratch, page)
	return null, cmp.Or(err, unmapErr)
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
