package hosts

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// dying reports whether a process has been killed. It executes no instruction of its program any
// more, and is not held either while it ends.
func (p Process) dying() bool {
	process, err := proc.Open(p.Outer)
	if err != nil {
		return true
	}
	defer process.Close()
	if process.Exiting() {
		return true
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Outer))
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(line, ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		if pending, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64); err == nil && pending&(1<<(unix.SIGKILL-1)) != 0 {
			return true
		}
	}
	return process.Exiting() // the signal may have been taken meanwhile
}
