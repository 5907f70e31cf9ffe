package criuutil

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// IsInside reports whether this program runs in a pid namespace below the one that
// /proc shows: then a pid from there names another process, or none, in every system
// call. criu's action scripts do once criu has entered an existing pid namespace to
// restore into it.
func IsInside() (bool, error) {
	pid, err := selfInProc()
	if err != nil {
		return false, err
	}
	status, err := ReadStatus(pid)
	return len(status.NSPID) > 1, err
}

// selfInProc is this program's pid as /proc has it.
func selfInProc() (int, error) {
	name, err := os.Readlink("/proc/self")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(name)
}

// IdentifyCriu is [CriuOf] for a program that [IsInside]: it cannot take hold of
// criu, but it can tell which one it is.
func IdentifyCriu(imageDirVariable string) (Ident, error) {
	pid, err := criuPID(imageDirVariable)
	if err != nil {
		return Ident{}, err
	}
	id := Ident{PID: pid}
	if id.StartTime, err = startTime(pid); err != nil {
		return Ident{}, err
	}
	var namespace unix.Stat_t
	if err := unix.Stat(filepath.Join("/proc", strconv.Itoa(pid), "ns", "pid"), &namespace); err != nil {
		return Ident{}, fmt.Errorf("pid namespace of criu: %w", err)
	}
	id.PIDNamespace = namespace.Ino
	return id, nil
}
