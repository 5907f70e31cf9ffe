package hooks

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
	"cucriu/hooks/journal"
)

// A parent that waits with WUNTRACED is told of our SIGSTOP. su then stops
// itself, and would stay stopped for ever: the job goes on without telling it.
// So those above the job that did not stand still before are continued if they
// do afterwards. (A shell with job control does not stop; it takes its foreground
// job for stopped, and gives no way to be told otherwise.)

// ancestorsOf are the processes above the members, up to the init of this pid
// namespace, that are not stopped now. The nearest come first.
func ancestorsOf(members []journal.Member) []proc.Ident {
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
			if process, err := proc.Open(pid); err == nil {
				if standing(pid) != stands {
					ancestors = append(ancestors, process.Ident)
				}
				process.Close()
			}
		}
	}
	return ancestors
}

const (
	// ancestorsTime bounds how long an ancestor that computes is looked at.
	ancestorsTime = 500 * time.Millisecond
	// asleepAfter is after how many looks that find it asleep an ancestor is taken for
	// settled: threads of it may sleep for a moment on the way to its stop.
	asleepAfter = 10
)

// continueAncestors sends SIGCONT to those that have stopped since. The job has its
// own SIGCONT by now, so none of them is told of the stop any more that has not
// been woken by it; one that runs may be on its way to stop itself, and is looked
// at again until it sleeps.
func (s *session) continueAncestors() {
	left, asleep := s.Ancestors, make(map[proc.Ident]int)
	for deadline := time.Now().Add(ancestorsTime); len(left) > 0; time.Sleep(2 * time.Millisecond) { // no event tells of it
		again := false
		var unsettled []proc.Ident
		for _, ident := range left {
			process, err := proc.Reopen(ident)
			if err != nil {
				continue // it has ended
			}
			switch standing(ident.PID) {
			case stands:
				_ = process.Signal(unix.SIGCONT)
				again = true // those above it have been told
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

// stance is what the threads of a process do.
type stance int

const (
	sleeps   stance = iota
	computes        // or waits for a disk: nothing can stop it now
	stands          // in the group-stop
)

func standing(pid int) stance {
	states, err := proc.ThreadStates(pid)
	switch {
	case err != nil || strings.Trim(states, "ZXx") == "":
		return sleeps
	case strings.Trim(states, "TZXx") == "":
		return stands
	case strings.ContainsAny(states, "RD"):
		return computes
	}
	return sleeps
}
