package inject

import (
	"time"

	"cucriu/internal/proc"
)

// Some waits only the kernel can go on with: it keeps until when. It forgets that if criu dumps a process (for its first
// thread, which runs criu's code) or restores it. The call then fails with EINTR, of which some programs end (tail -f), and
// others wait anew for the whole time (sleep). So threads are continued with registers that make the call anew, for the time
// that is left.

// Waits are the waits of a process's threads that end after a time, by thread.
type Waits map[int]timedWait

type timedWait struct {
	call  proc.Call
	left  time.Duration
	noted time.Time
}

// NoteWaits notes for how much longer threads wait. Nobody can tell once they are stopped: of those that are, what was noted
// before stays. It leaves out what it cannot find out, and threads with seccomp filters, which may forbid the call that goes on
// with the wait.
func NoteWaits(process *proc.Process, before Waits) Waits {
	tids, err := proc.Threads(process.PID)
	if err != nil {
		return nil
	}
	waits := make(Waits)
	proc.OnOwnThread(func() {
		for _, tid := range tids {
			call, is := proc.WaitsIn(process.PID, tid)
			limit := timeLimit(process, call)
			if !is || limit <= 0 {
				continue
			}
			stat, err := proc.ThreadStat(process.PID, tid)
			if err == nil && (stat.State == "T" || stat.State == "t") {
				if wait, noted := before[tid]; noted {
					waits[tid] = wait
				}
				continue
			}
			slept, known := proc.SleptFor(process.PID, tid)
			status, err := proc.ReadStatus(tid)
			if again, still := proc.WaitsIn(process.PID, tid); known && err == nil && !status.Seccomp && still && again == call {
				waits[tid] = timedWait{call, max(limit-slept, 1), time.Now()}
			}
		}
	})
	return waits
}

// left returns how long the wait lasts in which a thread was stopped; 0 if that is not known.
func (w Waits) left(tid int, stopped *registers) time.Duration {
	wait, noted := w[tid]
	if !noted || stopped.number() != uint64(wait.call.Number) || stopped.pc() != wait.call.PC {
		return 0
	}
	for i, argument := range wait.call.Arguments[:3] {
		if stopped.argument(i) != argument {
			return 0
		}
	}
	return max(wait.left-time.Since(wait.noted), 1)
}
