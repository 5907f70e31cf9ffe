package proc

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"cucriu/internal/kit/quote"
)

// permissionEvents are those of fanotify that wait for an answer: FAN_OPEN_PERM, FAN_ACCESS_PERM,
// FAN_OPEN_EXEC_PERM and FAN_PRE_ACCESS.
const permissionEvents = 0x10000 | 0x20000 | 0x40000 | 0x100000

// GuardedError says that a process controls who opens files, through a descriptor. To open such a file
// ends the job or waits for it, by a link below /proc/PID/fd as well as by its name.
type GuardedError struct {
	PID    int
	What   string // what the process does, without the subject
	Remedy string
}

func (e *GuardedError) Error() string {
	return fmt.Sprintf("process %d %s: %s", e.PID, e.What, e.Remedy)
}

// Guards says how a descriptor of a process controls who opens files; nil if it does not. link is where
// it leads, and info tells of it where that is needed.
func Guards(pid int, fd, link string, info func() DescriptorInfo) *GuardedError {
	switch {
	case link == "anon_inode:[fanotify]" && info().asksPermission():
		return &GuardedError{
			pid, "answers fanotify permission events (descriptor " + fd + "): whoever opens a file that it watches waits for its answer, and it cannot answer while it is stopped",
			"let a process outside the job answer them",
		}
	case filepath.IsAbs(link) && info().hasWriteLease():
		return &GuardedError{
			pid, fmt.Sprintf("has a write lease on %s (descriptor %s, F_SETLEASE): whoever opens the file breaks the lease, and the signal for that may end the process", quote.Name(link), fd),
			"let it give up the lease before the dump",
		}
	}
	return nil
}

// asksPermission reports whether a group of fanotify has a mark with permission events: for an inode, a
// mount or a file system.
func (i DescriptorInfo) asksPermission() bool {
	for line := range strings.Lines(i.text) { // fanotify ino:3f sdev:10 mflags:0 mask:10000 ignored_mask:0 …
		if !strings.HasPrefix(line, "fanotify ") {
			continue
		}
		for field := range strings.FieldsSeq(line) {
			if mask, is := strings.CutPrefix(field, "mask:"); is {
				events, err := strconv.ParseUint(mask, 16, 64)
				if err != nil || events&permissionEvents != 0 {
					return true
				}
			}
		}
	}
	return false
}

// hasWriteLease reports whether the open file has a lease that others break by reading the file. One that
// is being broken was such a lease.
func (i DescriptorInfo) hasWriteLease() bool {
	for _, lock := range i.Fields("lock") { // 1: LEASE  ACTIVE    WRITE 4711 00:23:5 0 EOF
		fields := strings.Fields(lock)
		if len(fields) > 3 && (fields[1] == "LEASE" || fields[1] == "DELEG") && (fields[2] != "ACTIVE" || fields[3] != "READ") {
			return true
		}
	}
	return false
}
