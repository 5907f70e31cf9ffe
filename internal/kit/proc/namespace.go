package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrElsewhere says that a process is known only by its pid in another pid namespace than
// this program's, so nothing can be said about it from here.
var ErrElsewhere = errors.New("process of another pid namespace")

// Elsewhere reports whether the identity holds a pid of another pid namespace than this
// program's. Whether such a process has ended cannot be told from here.
func (id Ident) Elsewhere() bool {
	own := ownPIDNamespace()
	return id.PIDNamespace != 0 && own != 0 && id.PIDNamespace != own
}

// Own returns the identity of a process of this pid namespace as the programs in its own innermost one
// have it. So it is the same whoever looks.
func (id Ident) Own() (Ident, error) {
	status, err := ReadStatus(id.PID)
	if err != nil {
		return Ident{}, err
	}
	namespace, err := PIDNamespace(id.PID)
	if err != nil {
		return Ident{}, GoneOr(id.PID, err)
	}
	return Ident{PID: status.ImagePID(), StartTime: id.StartTime, PIDNamespace: namespace}, nil
}

// IsOwn reports whether two results of [Ident.Own] are of the same process. Two time namespaces may round a
// start time differently.
func (id Ident) IsOwn(other Ident) bool {
	return id.PID == other.PID && id.PIDNamespace == other.PIDNamespace && id.StartTime <= other.StartTime+1 && other.StartTime <= id.StartTime+1
}

// PIDNamespace returns the inode of the pid namespace of a process, also of one that has ended and is not reaped.
func PIDNamespace(pid int) (inode uint64, err error) { return pidNamespace(strconv.Itoa(pid)) }

// pidNamespace returns the inode of the pid namespace of a process, or 0 if it cannot be read.
func pidNamespace(process string) (inode uint64, err error) {
	var stat unix.Stat_t
	err = unix.Stat(filepath.Join("/proc", process, "ns/pid"), &stat)
	return stat.Ino, err
}

func ownPIDNamespace() uint64 {
	own, _ := pidNamespace("self")
	return own
}

const nanosPerTick = 10_000_000 // of the clock ticks in /proc/PID/stat

// boottimeTicks returns by how many clock ticks the start times that /proc shows here are
// later than on the host. This is the offset of the reader's time namespace, which a
// process with several threads cannot change.
var boottimeTicks = sync.OnceValues(readBoottimeTicks)

func readBoottimeTicks() (int64, error) {
	data, err := os.ReadFile("/proc/self/timens_offsets")
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil // a kernel without time namespaces
	}
	if err != nil {
		return 0, err
	}
	return parseBoottimeOffset(string(data))
}

func parseBoottimeOffset(text string) (int64, error) {
	for line := range strings.Lines(text) {
		var seconds, nanos int64
		if n, _ := fmt.Sscanf(line, "boottime %d %d", &seconds, &nanos); n == 2 {
			ticks := seconds * (1_000_000_000 / nanosPerTick)
			return ticks + nanos/nanosPerTick, nil // nanos are never negative
		}
	}
	return 0, fmt.Errorf("/proc/self/timens_offsets has no boottime line: %q", text)
}

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
	started, err := startTime(pid)
	if err != nil {
		return Ident{}, err
	}
	namespace, err := PIDNamespace(pid)
	if err != nil {
		return Ident{}, fmt.Errorf("pid namespace of process %d: %w", pid, err)
	}
	return Ident{PID: pid, StartTime: started, PIDNamespace: namespace}, nil
}
