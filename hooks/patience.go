package hooks

import (
	"runtime"
	"strings"
	"time"

	"cucriu/internal/proc"
)

// patience is how long to wait for processes that run: until they answer through the
// driver, or come to their stop. It is lock.timeout, and longer if many of their threads
// run. These may keep each other, and us, from a CPU, and every answer takes some turns of
// it. A thousand threads that compute on two CPUs make a turn last seconds.
func (h *Hook) patience(pids ...int) time.Duration {
	const turn = 4 * time.Millisecond // how long the kernel lets a thread run while others wait
	const turns = 20
	running := 0
	for _, pid := range pids {
		if states, err := proc.ThreadStates(pid); err == nil {
			running += strings.Count(states, "R")
		}
	}
	return h.Config.Lock.Timeout + time.Duration(running/runtime.NumCPU())*turns*turn
}
