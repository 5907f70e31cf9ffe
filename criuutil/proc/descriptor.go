package proc

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ShareDescriptor returns a duplicate of one of the process's descriptors. It refers to the
// same open file.
func (p *Process) ShareDescriptor(fd int) (*os.File, error) {
	conn, err := p.pidfd.SyscallConn()
	if err != nil {
		return nil, err
	}
	shared, shareErr := -1, error(nil)
	if err := conn.Control(func(pidfd uintptr) { shared, shareErr = unix.PidfdGetfd(int(pidfd), fd, 0) }); err != nil {
		return nil, err
	}
	if shareErr != nil {
		return nil, fmt.Errorf("share descriptor %d of %v: %w", fd, p, shareErr)
	}
	// The kernel sets close-on-exec.
	return os.NewFile(uintptr(shared), fmt.Sprintf("descriptor %d of %v", fd, p)), nil
}
