package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Call is a system call in which a thread waits.
type Call struct {
	Number    int64
	Arguments [6]uint64
	SP, PC    uint64
}

// WaitsIn returns the system call in which a thread waits, as /proc/PID/task/TID/syscall has it. It reports false if the
// thread runs, is stopped outside of one, or has ended.
func WaitsIn(pid, tid int) (call Call, waits bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", pid, tid))
	fields := strings.Fields(string(text))
	if err != nil || len(fields) != 9 {
		return Call{}, false
	}
	if call.Number, err = strconv.ParseInt(fields[0], 10, 64); err != nil || call.Number < 0 {
		return Call{}, false
	}
	var numbers [8]uint64
	for i, field := range fields[1:] {
		if numbers[i], err = strconv.ParseUint(field, 0, 64); err != nil {
			return Call{}, false
		}
	}
	copy(call.Arguments[:], numbers[:])
	call.SP, call.PC = numbers[6], numbers[7]
	return call, true
}
