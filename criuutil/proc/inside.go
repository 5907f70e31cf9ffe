package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// IsInInnerPIDNamespace reports whether this program runs in a pid namespace below the one that /proc
// shows. A pid from /proc then names another process, or none, in every system call. This
// is the case for criu's action scripts once criu has entered an existing pid namespace to
// restore into it.
func IsInInnerPIDNamespace() (bool, error) {
	pid, err := Self()
	if err != nil {
		return false, err
	}
	status, err := ReadStatus(pid)
	return len(status.NSPID) > 1, err
}

// Self returns this program's pid as /proc shows it.
func Self() (int, error) {
	name, err := os.Readlink("/proc/self")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(name)
}

// Identify returns the identity that [Open] would give a process. It serves a program for
// which [IsInInnerPIDNamespace] is true, which cannot open the process.
func Identify(pid int) (Ident, error) {
	id := Ident{PID: pid}
	var err error
	if id.StartTime, err = startTime(pid); err != nil {
		return Ident{}, err
	}
	var namespace unix.Stat_t
	if err := unix.Stat(filepath.Join("/proc", strconv.Itoa(pid), "ns", "pid"), &namespace); err != nil {
		return Ident{}, fmt.Errorf("pid namespace of process %d: %w", pid, err)
	}
	id.PIDNamespace = namespace.Ino
	return id, nil
}
