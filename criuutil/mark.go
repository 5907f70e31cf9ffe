package criuutil

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// MarkChildren marks what criu is going to create, with a random number that it
// returns. The mark is criu's soft limit of real-time run time, so long (73,000 years
// at the least) that it limits nothing. Children inherit it, whatever becomes of
// their parent, and keep it until criu's restorer gives them the limits in the image.
func (c *Criu) MarkChildren() (mark uint64, err error) {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return 0, err
	}
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

// HasMark reports whether a process has the mark of the children of a criu.
func HasMark(pid int, mark uint64) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil || mark == 0 {
		return false
	}
	for line := range strings.Lines(string(data)) {
		if rest, found := strings.CutPrefix(line, "Max realtime timeout"); found {
			fields := strings.Fields(rest)
			return len(fields) > 0 && fields[0] == fmt.Sprint(mark)
		}
	}
	return false
}
