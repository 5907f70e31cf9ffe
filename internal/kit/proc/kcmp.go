package proc

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What kcmp(2) compares, from linux/kcmp.h.
const (
	kcmpFile  = 0 // two descriptors: do they refer to the same open file?
	kcmpVM    = 1 // two processes: do they share their memory?
	kcmpFiles = 2 // do they share their table of descriptors?
	kcmpEpoll = 7 // a descriptor and an entry of an epoll set: do they refer to the same open file?
	kcmpFS    = 3 // do they share their root, working directory and umask?
)

// SameFile reports whether a descriptor of one process and one of another refer to the same
// open file, as after a fork. It is false if one of the descriptors is not open.
func SameFile(pid, fd, otherPID, otherFD int) (bool, error) {
	same, err := kcmp(kcmpFile, pid, otherPID, fd, otherFD)
	if errors.Is(err, unix.EBADF) {
		return false, nil
	}
	return same, err
}

// SharedTables reports whether two processes share their memory, and whether they share their
// table of descriptors (vfork(2); clone(2) with CLONE_VM, CLONE_FILES): what one of them opens,
// closes or maps, the other has, too.
func SharedTables(pid, otherPID int) (memory, descriptors bool, err error) {
	if memory, err = kcmp(kcmpVM, pid, otherPID, 0, 0); err != nil {
		return false, false, err
	}
	descriptors, err = kcmp(kcmpFiles, pid, otherPID, 0, 0)
	return memory, descriptors, err
}

// InEpoll reports whether a descriptor of a process refers to the file that an epoll set of the
// process watches by the descriptor target, which may be closed or that of another file by now.
// The set may hold several files by the same target: nth counts them as its fdinfo does, from 0.
func InEpoll(pid, epoll, target, nth, fd int) (bool, error) {
	slot := struct{ epoll, target, nth uint32 }{uint32(epoll), uint32(target), uint32(nth)}
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(pid), kcmpEpoll, uintptr(fd), uintptr(unsafe.Pointer(&slot)), 0)
	if errno == unix.EBADF {
		return false, nil
	}
	return kcmpResult(pid, pid, order, errno)
}

// Sharing finds two processes that share their memory, or their root and working directory
// (clone with CLONE_VM, CLONE_FS). The processes must not have ended. kcmp(2) has an order, so
// sorting finds them.
func Sharing(pids []int) (pid, otherPID int, shared string) {
	for what, name := range map[uintptr]string{kcmpVM: "memory", kcmpFS: "root and working directory"} {
		slices.SortFunc(slices.Clone(pids), func(a, b int) int {
			order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), what, 0, 0, 0)
			if errno == 0 && order == 0 && a != b {
				pid, otherPID, shared = a, b, name
			}
			return []int{0, -1, 1, 0}[order%4]
		})
	}
	return pid, otherPID, shared
}

// OwnOfThread names what a thread does not share with its process, as after unshare(2); "" if it
// shares everything.
func OwnOfThread(pid, tid int) (own string, err error) {
	for what, name := range map[int]string{kcmpFiles: "a table of descriptors", kcmpFS: "a working directory"} {
		same, err := kcmp(what, pid, tid, 0, 0)
		if err != nil {
			return "", err
		}
		if !same {
			return name, nil
		}
	}
	return "", nil
}

func kcmp(what, pid, otherPID, index, otherIndex int) (same bool, err error) {
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(otherPID), uintptr(what), uintptr(index), uintptr(otherIndex), 0)
	return kcmpResult(pid, otherPID, order, errno)
}

func kcmpResult(pid, otherPID int, order uintptr, errno unix.Errno) (same bool, err error) {
	switch errno {
	case 0:
		return order == 0, nil
	case unix.ESRCH:
		return false, fmt.Errorf("process %d or %d: %w", pid, otherPID, ErrGone)
	}
	return false, fmt.Errorf("kcmp of processes %d and %d: %w", pid, otherPID, errno)
}
