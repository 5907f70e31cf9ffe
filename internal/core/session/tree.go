package session

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/journal"
	"cucriu/internal/kit/proc"
)

// KillTree kills the root, all its descendants, and the members wherever they are: see [proc.KillTree]. A process
// that is exiting counts as ended, even if nobody has reaped it: at pre-resume criu traces the threads, and reaps
// none of them before this program has ended.
func KillTree(r *journal.Record) error {
	return proc.KillTree(r.Root, known(r), (*proc.Process).Exiting)
}

func known(r *journal.Record) []proc.Ident {
	return slices.Concat(journal.IdentsOf(r.Members), r.Tree, r.Others)
}

func StopTree(r *journal.Record) error {
	processes, err := OpenTree(r)
	if err != nil {
		return err
	}
	defer proc.CloseAll(processes)
	return proc.SignalAll(unix.SIGSTOP, processes...)
}

// StopMembers sends SIGSTOP to the processes that may be checkpointed.
func StopMembers(r *journal.Record) error {
	if !r.MayBeCheckpointed() {
		return nil
	}
	return SignalKnown(unix.SIGSTOP, journal.IdentsOf(r.Members)...)
}

// OpenTree takes hold of the living processes of the session.
func OpenTree(r *journal.Record) ([]*proc.Process, error) { return proc.OpenTree(r.Root, known(r)) }

// SignalKnown sends a signal to those that have not ended. A new process that has got one of their pids
// does not get it.
func SignalKnown(signal unix.Signal, known ...proc.Ident) error {
	for _, id := range known {
		process, err := proc.Reopen(id)
		if err == nil {
			err = errors.Join(process.Signal(signal), process.Close())
		}
		if err != nil && !errors.Is(err, proc.ErrGone) {
			return err
		}
	}
	return nil
}

// Gone reports whether a process has ended. Its error may be [proc.ErrElsewhere].
func Gone(id proc.Ident) (bool, error) {
	process, err := proc.Reopen(id)
	if errors.Is(err, proc.ErrGone) {
		return true, nil
	}
	if err == nil {
		process.Close()
	}
	return false, err
}

// AwaitExit waits until a process has ended. Its error may be [proc.ErrElsewhere].
func AwaitExit(ctx context.Context, id proc.Ident) error {
	process, err := proc.Reopen(id)
	if errors.Is(err, proc.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer process.Close()
	return process.WaitExit(ctx)
}

// NoteTree adds the processes below the root to the record's tree, and reports whether any was new.
func NoteTree(r *journal.Record) bool {
	process, err := proc.Reopen(*r.Root)
	if err != nil {
		return false
	}
	defer process.Close()
	pids, err := proc.Tree(r.Root.PID)
	if err != nil {
		return false
	}
	before := len(r.Tree)
	for _, pid := range pids {
		if id, err := proc.IdentOf(pid); err == nil && !slices.Contains(r.Tree, id) {
			r.Tree = append(r.Tree, id)
		}
	}
	return len(r.Tree) > before
}

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
	// ancestorsTime bounds how long we wait for ancestors to settle, and ancestorsCPU how long one may
	// compute meanwhile: one that has had the CPU for that long is not on its way to a stop.
	ancestorsTime = 10 * time.Second
	ancestorsCPU  = 200 * time.Millisecond
	// asleepAfter is how many looks in a row must find an ancestor asleep before it counts as settled:
	// its threads may sleep for a moment on the way to their stop.
	asleepAfter = 10
)

// continueAncestors sends SIGCONT to the ancestors that have stopped since the session began, until they sleep: one
// that runs may be about to stop itself.
func continueAncestors(ancestors []proc.Ident) {
	left, asleep := ancestors, make(map[proc.Ident]int)
	used := make(map[proc.Ident]time.Duration)
	for _, ident := range ancestors {
		used[ident] = proc.CPUTime(ident.PID)
	}
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
				again, asleep[ident] = true, 0 // its own parent has been told, and it may see its child stopped once more
				unsettled = append(unsettled, ident)
			case computes:
				again, asleep[ident] = again || proc.CPUTime(ident.PID)-used[ident] < ancestorsCPU, 0
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
	computes             // or waits for a disk or a tracer (criu): nothing can stop it now
	inGroupStop          // in the group-stop
)

func runStateOf(pid int) runState {
	states, err := proc.ThreadStates(pid)
	switch {
	case err != nil || strings.Trim(states, "ZXx") == "":
		return sleeps
	case strings.Trim(states, "TZXx") == "":
		return inGroupStop
	case strings.ContainsAny(states, "RDt"):
		return computes
	}
	return sleeps
}
