package session

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// A parent that waits with WUNTRACED is told when we stop its child. su then stops itself, and nobody
// tells it that the job runs again. So processes above the job that ran before and stand still
// afterwards get a SIGCONT. (A shell with job control does not stop: it takes its foreground job for
// stopped, and cannot be told otherwise.)

// AncestorsOf returns the processes above the members, up to the init of this pid namespace, that are
// not stopped now. The nearest come first.
func AncestorsOf(members []journal.Member) []proc.Ident {
	seen := make(map[int]bool)
	for _, member := range members {
		seen[member.PID] = true
	}
	var ancestors []proc.Ident
	for _, member := range members {
		for pid := member.PID; ; {
			status, err := proc.ReadStatus(pid)
			if pid = status.PPID; err != nil || pid <= 1 {
				break
			}
			if seen[pid] {
				continue
			}
			seen[pid] = true
			if id, err := proc.IdentOf(pid); err == nil && runStateOf(pid) != inGroupStop {
				ancestors = append(ancestors, id)
			}
		}
	}
	return ancestors
}

const (
	// ancestorsTime bounds how long we wait for ancestors to settle.
	ancestorsTime = 500 * time.Millisecond
	// asleepAfter is how many looks in a row must find an ancestor asleep before it counts as settled:
	// its threads may sleep for a moment on the way to their stop.
	asleepAfter = 10
)

// continueAncestors sends SIGCONT to the ancestors that have stopped since the session began. One that
// runs may be about to stop itself, and is looked at again until it sleeps.
func continueAncestors(ancestors []proc.Ident) {
	left, asleep := ancestors, make(map[proc.Ident]int)
	for deadline := time.Now().Add(ancestorsTime); len(left) > 0; time.Sleep(2 * time.Millisecond) { // there is no event to wait for
		again := false
		var unsettled []proc.Ident
		for _, ident := range left {
			process, err := proc.Reopen(ident)
			if err != nil {
				continue // it has ended
			}
			switch runStateOf(ident.PID) {
			case inGroupStop:
				_ = process.Signal(unix.SIGCONT)
				again = true // its own parent has been told
			case computes:
				again, asleep[ident] = true, 0
				unsettled = append(unsettled, ident)
			default:
				asleep[ident]++
				again = again || asleep[ident] < asleepAfter
				unsettled = append(unsettled, ident)
			}
			process.Close()
		}
		if left = unsettled; !again || time.Now().After(deadline) {
			return
		}
	}
}

// runState is what the threads of a process are doing.
type runState int

const (
	sleeps      runState = iota
	computes             // or waits for a disk: nothing can stop it now
	inGroupStop          // in the group-stop
)

func runStateOf(pid int) runState {
	states, err := proc.ThreadStates(pid)
	switch {
	case err != nil || strings.Trim(states, "ZXx") == "":
		return sleeps
	case strings.Trim(states, "TZXx") == "":
		return inGroupStop
	case strings.ContainsAny(states, "RD"):
		return computes
	}
	return sleeps
}
