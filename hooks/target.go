package hooks

import (
	"errors"

	"cucriu/cudackpt"
	"cucriu/internal/inject"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// target is a CUDA process at hand: the member of a session, its pidfd, and
// the driver's view of it.
type target struct {
	*proc.Process
	member   *journal.Member
	cuda     cudackpt.Process
	locked   bool              // by the current try of the lock
	frozen   bool              // by a v1 freezer instead of stopped, for criu to dump
	tracer   *inject.Tracer    // of a dump or suspend: lets the restore thread run
	before   proc.AddressSpace // what was mapped before the checkpoint
	prefault *prefault         // of a dump or suspend: makes the staging memory ready
	parked   *inject.Parked    // its parked threads; nil if it is held by its stop alone
	lent     *inject.Borrowed  // threads of it that drop its memory
}

func closeTargets(targets []*target) {
	for _, t := range targets {
		t.Close()
	}
}

func processesOf(targets []*target) []*proc.Process {
	processes := make([]*proc.Process, len(targets))
	for i, t := range targets {
		processes[i] = t.Process
	}
	return processes
}

// openTargets opens the driver and takes hold of the members of a session that have not
// ended. Without members it needs no driver, and returns none.
func openTargets(s *session) (*cudackpt.Driver, []*target, error) {
	if len(s.Members) == 0 {
		return nil, nil, nil
	}
	driver, err := s.env.OpenDriver()
	if err != nil {
		return nil, nil, err
	}
	targets, err := openMembers(driver, s.Members)
	return driver, targets, err
}

// openMembers takes hold of the members of a session. It leaves out those that have ended.
func openMembers(driver *cudackpt.Driver, members []journal.Member) ([]*target, error) {
	var targets []*target
	for i := range members {
		process, err := proc.Reopen(members[i].Ident)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			closeTargets(targets)
			return nil, err
		}
		targets = append(targets, &target{Process: process, member: &members[i], cuda: driver.Process(process.PID)})
	}
	return targets, nil
}
