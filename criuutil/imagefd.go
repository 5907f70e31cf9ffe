package criuutil

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// ShareImageDir returns criu's own descriptor of its image directory, shared: not
// the same directory opened again, but the open file that criu has. It is named as
// in CRTOOLS_IMAGE_DIR, or by its path. criu opens it anew for each request.
func (c *Criu) ShareImageDir(dir string) (*os.File, error) {
	if match := imageDir.FindStringSubmatch(dir); match != nil {
		fd, err := strconv.Atoi(match[2])
		if err != nil {
			return nil, fmt.Errorf("CRTOOLS_IMAGE_DIR: %w", err)
		}
		return c.ShareDescriptor(fd)
	}
	wanted, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	open := filepath.Join("/proc", strconv.Itoa(c.PID), "fd")
	entries, err := os.ReadDir(open)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		info, err := os.Stat(filepath.Join(open, entry.Name()))
		fd, nameErr := strconv.Atoi(entry.Name())
		if err == nil && nameErr == nil && os.SameFile(info, wanted) {
			return c.ShareDescriptor(fd)
		}
	}
	return nil, fmt.Errorf("%v does not have %s open", c, dir)
}

// ShareDescriptor returns one of the process's descriptors, shared.
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

// HasOpen reports whether a process has the open file that this program's descriptor
// fd is of: it has inherited it from this program, or both have it from a third. (That
// both have opened the same file does not make it the same open file.)
func HasOpen(pid, fd int) (bool, error) {
	const kcmpFile = 0 // KCMP_FILE in the kernel's include/uapi/linux/kcmp.h
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if err != nil {
		return false, goneOr(pid, err)
	}
	for _, entry := range entries {
		theirs, err := strconv.Atoi(entry.Name())
		if err != nil {
			return false, err
		}
		order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(pid), kcmpFile, uintptr(fd), uintptr(theirs), 0)
		switch {
		case errno == unix.EBADF: // closed meanwhile
		case errno == unix.ESRCH:
			return false, fmt.Errorf("process %d: %w", pid, ErrGone)
		case errno != 0:
			return false, fmt.Errorf("compare descriptors with process %d: %w", pid, errno)
		case order == 0:
			return true, nil
		}
	}
	return false, nil
}

// The mark is the number of the signal that would tell of input: the one property
// of an open file that anybody can set and read, that changes nothing (nobody has
// asked for such signals), and that ends with it.
const requestMark = int(unix.SIGURG)

// MarkRequest marks the request that criu is serving, and reports whether it had
// been marked before.
func MarkRequest(imageDir *os.File) (marked bool, err error) {
	signal, err := unix.FcntlInt(imageDir.Fd(), unix.F_GETSIG, 0)
	if err == nil && signal != requestMark {
		_, err = unix.FcntlInt(imageDir.Fd(), unix.F_SETSIG, requestMark)
	}
	if err != nil {
		return false, errors.Join(errors.New("mark criu's request"), err)
	}
	return signal == requestMark, nil
}
