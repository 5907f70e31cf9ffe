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
		return c.shareDescriptor(fd)
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
			return c.shareDescriptor(fd)
		}
	}
	return nil, fmt.Errorf("%v does not have %s open", c, dir)
}

func (p *Process) shareDescriptor(fd int) (*os.File, error) {
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

// SameOpenFile reports whether a descriptor of this process is the same open file as
// a descriptor of another: one has inherited it from the other, or both from a third.
func SameOpenFile(f *os.File, pid, fd int) (bool, error) {
	const kcmpFile = 0 // KCMP_FILE in the kernel's include/uapi/linux/kcmp.h
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(pid), kcmpFile, f.Fd(), uintptr(fd), 0)
	if errno != 0 {
		return false, fmt.Errorf("compare with descriptor %d of process %d: %w", fd, pid, errno)
	}
	return order == 0, nil
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
