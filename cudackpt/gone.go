package cudackpt

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// gone reports whether no live process has this pid: there is none, or one that runs no code any more.
func gone(pid int) bool {
	const exiting = 0x4 // PF_EXITING in the kernel's include/linux/sched.h
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
	}
	// In "pid (comm) S …" comm may itself contain parentheses, so look for the last one.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(string(fields[6]), 10, 32)
	return string(fields[0]) == "Z" || string(fields[0]) == "X" || err == nil && flags&exiting != 0
}
