package proc

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

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
