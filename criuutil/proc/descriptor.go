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

// ClosesOnExec reports whether a descriptor of a process is closed when it executes a program.
func ClosesOnExec(pid, fd int) (bool, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
	if err != nil {
		return false, GoneOr(pid, err)
	}
	var position int64
	var flags int
	if _, err := fmt.Sscanf(string(info), "pos:\t%d\nflags:\t%o", &position, &flags); err != nil {
		return false, fmt.Errorf("fdinfo of descriptor %d of process %d is not understood: %w: %q", fd, pid, err, info)
	}
	return flags&unix.O_CLOEXEC != 0, nil
}

// IsNull reports whether a path leads to the kernel's /dev/null.
func IsNull(path string) (bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3), nil
}
