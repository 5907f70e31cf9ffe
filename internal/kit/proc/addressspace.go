package proc

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Range is a part of an address space: [Start, End).
type Range struct {
	Start uint64 `json:"start"`
	End   uint64 `json:"end"`
}

// Size returns the size in bytes.
func (r Range) Size() uint64 { return r.End - r.Start }

// AddressSpace lists what a process has mapped, in the order of the addresses.
type AddressSpace struct {
	Mapped []Range // every mapping
	// Private lists the mappings that are private, anonymous, readable and writable: memory
	// that is shared with no other process and backed by no file.
	Private []Range
}

// ReadAddressSpace reads the mappings of a process. The result is a consistent snapshot
// only if the process is stopped.
func ReadAddressSpace(pid int) (AddressSpace, error) {
	var space AddressSpace
	mappings, err := Mappings(pid)
	if err != nil {
		return space, err
	}
	for _, m := range mappings {
		r := Range{Start: uint64(m.StartAddr), End: uint64(m.EndAddr)}
		space.Mapped = append(space.Mapped, r)
		if m.Perms.Private && m.Perms.Read && m.Perms.Write && m.Inode == 0 && m.Pathname == "" {
			space.Private = append(space.Private, r)
		}
	}
	return space, nil
}

// NewSince returns the private memory that was not mapped before. If the kernel has merged
// a new mapping with an older one, the new part counts.
func (s AddressSpace) NewSince(before AddressSpace) []Range {
	return Subtract(s.Private, before.Mapped)
}

// Subtract returns the parts of ranges that lie in none of the others. Both lists must be
// ascending and free of overlaps.
func Subtract(ranges, others []Range) []Range {
	var left []Range
	for _, r := range ranges {
		first, _ := slices.BinarySearchFunc(others, r.Start, func(o Range, start uint64) int { return cmp.Compare(o.End, start+1) })
		for _, other := range others[first:] {
			if other.Start >= r.End {
				break
			}
			if other.Start > r.Start {
				left = append(left, Range{r.Start, other.Start})
			}
			r.Start = min(other.End, r.End)
		}
		if r.Size() > 0 {
			left = append(left, r)
		}
	}
	return left
}

// Total returns the size of all ranges together, in bytes.
func Total(ranges []Range) uint64 {
	var sum uint64
	for _, r := range ranges {
		sum += r.Size()
	}
	return sum
}

// ReadMemory fills data from the memory of the process at an address, or fails. It needs
// the right to trace the process. The process need not run.
func (p *Process) ReadMemory(data []byte, address uint64) error {
	return p.transfer("read", unix.ProcessVMReadv, data, address)
}

// WriteMemory writes data into the memory of the process, which must be writable at that
// address.
func (p *Process) WriteMemory(data []byte, address uint64) error {
	return p.transfer("write", unix.ProcessVMWritev, data, address)
}

type vmCall func(pid int, local []unix.Iovec, remote []unix.RemoteIovec, flags uint) (int, error)

func (p *Process) transfer(what string, call vmCall, data []byte, address uint64) error {
	for len(data) > 0 {
		// The kernel takes a pid here, so make sure that it still names this process.
		if !p.Alive() {
			return fmt.Errorf("%s memory of %v: %w", what, p, ErrGone)
		}
		local := unix.Iovec{Base: &data[0]}
		local.SetLen(len(data))
		n, err := call(p.PID, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(address), Len: len(data)}}, 0)
		if errors.Is(err, unix.ESRCH) {
			err = ErrGone
		}
		if err == nil && n == 0 {
			err = unix.EFAULT
		}
		if err != nil {
			return fmt.Errorf("%s %d bytes of memory of %v at %#x: %w", what, len(data), p, address, err)
		}
		data, address = data[n:], address+uint64(n)
	}
	return nil
}

// CanDropLocked reports whether this kernel knows MADV_DONTNEED_LOCKED, which exists since
// Linux 5.18. Older kernels cannot drop locked memory.
func CanDropLocked() bool {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Munmap(page) }()
	return unix.Madvise(page, unix.MADV_DONTNEED_LOCKED) == nil
}
