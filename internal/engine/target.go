package engine

import (
	"errors"

	"cucriu/cudackpt"
	"cucriu/internal/inject"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
	"cucriu/internal/session"
)

// Target is a CUDA process at hand: the member of a session, its pidfd, and the driver's view of it.
type Target struct {
	*proc.Process
	Member   *journal.Member
	CUDA     cudackpt.Process
	locked   bool              // by the current try of the lock
	Frozen   bool              // by a v1 freezer instead of stopped, for criu to dump
	Tracer   *inject.Tracer    // of a dump or suspend: lets the restore thread run
	Before   proc.AddressSpace // what was mapped before the checkpoint
	prefault *prefault         // of a dump or suspend: makes the staging memory ready
	Parked   *inject.Parked    // its parked threads; nil if it is held by its stop alone
	Lent     *inject.Borrowed  // threads of it that drop its memory
}

func CloseTargets(targets []*Target) {
	for _, t := range targets {
		t.Close()
	}
}

func ProcessesOf(targets []*Target) []*proc.Process {
	processes := make([]*proc.Process, len(targets))
	for i, t := range targets {
		processes[i] = t.Process
	}
	return processes
}

// OpenTargets opens the driver and takes hold of the members of a session that have not ended. Without
// members it needs no driver, and returns none.
func OpenTargets(s *session.Session) (*cudackpt.Driver, []*Target, error) {
	if len(s.Members) == 0 {
		return nil, nil, nil
	}
	driver, err := s.Env.OpenDriver()
	if err != nil {
		return nil, nil, err
	}
	targets, err := OpenMembers(driver, s.Members)
	return driver, targets, err
}

// OpenMembers takes hold of the members of a session. It leaves out those that have ended.
func OpenMembers(driver *cudackpt.Driver, members []journal.Member) ([]*Target, error) {
	var targets []*Target
	for i := range members {
		process, err := proc.Reopen(members[i].Ident)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			CloseTargets(targets)
			return nil, err
		}
		targets = append(targets, &Target{Process: process, Member: &members[i], CUDA: driver.Process(process.PID)})
	}
	return targets, nil
}
