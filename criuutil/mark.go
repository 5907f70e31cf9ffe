package criuutil

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// MarkChildren marks the processes that criu is going to create with a random number and
// returns the number.
//
// The mark is criu's soft limit on real-time CPU time (RLIMIT_RTTIME). It is at least
// 73,000 years, so it limits nothing. Children inherit it and keep it even if their parent
// dies, until criu's restorer gives them the limits in the image.
func (c *Criu) MarkChildren() (mark uint64, err error) {
	var random [8]byte
	rand.Read(random[:])
	mark = 1<<61 | binary.NativeEndian.Uint64(random[:])>>3
	var limit unix.Rlimit
	if err := unix.Prlimit(c.PID, unix.RLIMIT_RTTIME, nil, &limit); err != nil {
		return 0, fmt.Errorf("limits of criu: %w", err)
	}
	limit.Cur = mark
	if err := unix.Prlimit(c.PID, unix.RLIMIT_RTTIME, &limit, nil); err != nil {
		return 0, fmt.Errorf("mark what criu creates: %w", err)
	}
	return mark, nil
}

// HasMark reports whether a process has a mark that [Criu.MarkChildren] set.
func HasMark(pid int, mark uint64) bool {
	process, err := procfs.NewProc(pid)
	if err != nil || mark == 0 {
		return false
	}
	limits, err := process.Limits() // prlimit(2) needs CAP_SYS_RESOURCE for a process of another user
	return err == nil && limits.RealtimeTimeout == mark
}
