package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"

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
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	err := p.control(func(pidfd int) error { return unix.IoctlPidfdInfo(pidfd, &info) })
	return unix.WaitStatus(info.Exit_code), err == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0
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
