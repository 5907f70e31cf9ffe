package proc

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// EndStatus tells how the process has ended, which need not be our child. Until its parent has
// waited for it, every kernel tells; later Linux 6.15 and newer do.
func (p *Process) EndStatus() (status unix.WaitStatus, known bool) {
	if data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID)); err == nil {
		if status, known = zombieStatus(string(data)); known {
			return status, true
		}
	}
	_ = p.control(func(pidfd int) error {
		status, known = reapedStatus(uintptr(pidfd))
		return nil
	})
	return status, known
}

// zombieStatus finds the status in /proc/PID/stat of a process that has ended.
func zombieStatus(stat string) (unix.WaitStatus, bool) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // from the third on
	const state, exitCode = 0, 52 - 3
	if len(fields) <= exitCode || fields[state] != "Z" {
		return 0, false
	}
	code, err := strconv.Atoi(fields[exitCode])
	return unix.WaitStatus(code), err == nil
}

// reapedStatus asks for what the kernel keeps of a process for which its parent has waited.
func reapedStatus(pidfd uintptr) (unix.WaitStatus, bool) {
	const ( // of <linux/pidfd.h>
		infoSize  = 64 // of struct pidfd_info: mask, cgroupid, and twelve numbers of 4 bytes
		getInfo   = 3<<30 | infoSize<<16 | 0xff<<8 | 11
		infoExit  = 1 << 3
		endStatus = infoSize - 4
	)
	var info [infoSize]byte
	binary.NativeEndian.PutUint64(info[:], infoExit)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, pidfd, getInfo, uintptr(unsafe.Pointer(&info)))
	if errno != 0 || binary.NativeEndian.Uint64(info[:])&infoExit == 0 {
		return 0, false
	}
	return unix.WaitStatus(binary.NativeEndian.Uint32(info[endStatus:])), true
}
