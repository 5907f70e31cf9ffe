package journal

import (
	"errors"
	"fmt"

	"cucriu/criuutil/pages"
	"cucriu/criuutil/proc"
	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
)

// Member is one CUDA process of a session.
type Member struct {
	preflight.Process
	// PrivateBefore is how much private memory it had mapped before the checkpoint,
	// in bytes.
	PrivateBefore uint64 `json:"private_before,omitempty"`
	// Pairs is the GPU map for its restore; none means the same devices.
	Pairs []cudackpt.GPUPair `json:"pairs,omitempty"`
	// Pages is what the fast lane has of its memory.
	Pages *MemberPages `json:"pages,omitempty"`
}

// MembersOf are processes as the members of a session.
func MembersOf(processes []preflight.Process) []Member {
	members := make([]Member, len(processes))
	for i, p := range processes {
		members[i].Process = p
	}
	return members
}

// ProcessesOf are the members as they were inspected.
func ProcessesOf(members []Member) []preflight.Process {
	processes := make([]preflight.Process, len(members))
	for i, m := range members {
		processes[i] = m.Process
	}
	return processes
}

// MemberPages is what the fast lane has of a process's memory.
type MemberPages struct {
	// Listing names the files; it says nothing else of them until they are complete.
	Listing *pages.Listing `json:"listing"`
	// WatcherFD is the first of the descriptors by which the watcher has them.
	WatcherFD int `json:"watcher_fd"`
	// Dropped says that the memory may not be in the process any more.
	Dropped bool `json:"dropped"`
}

// validate refuses what nobody here can have written.
func (p *MemberPages) validate() error {
	switch {
	case p == nil:
		return nil
	case p.Listing == nil:
		return errors.New("it names no files of a process's memory")
	case p.WatcherFD < FirstWatcherFD:
		return fmt.Errorf("it has them as descriptor %d of the watcher", p.WatcherFD)
	case p.Dropped:
		return p.Listing.Validate()
	}
	return p.Listing.ValidateNames()
}

// FirstWatcherFD is the first descriptor that a watcher inherits beside its
// standard streams.
const FirstWatcherFD = 3

// PagesToFill is what a restore has to fill in; fd is the watcher's first
// descriptor that is not assigned yet.
func PagesToFill(l *pages.Listing, fd *int) *MemberPages {
	if l == nil {
		return nil
	}
	p := &MemberPages{Listing: l, WatcherFD: *fd, Dropped: true}
	*fd += l.Files()
	return p
}

// Alive reports whether the process has neither ended nor is about to.
func (m Member) Alive() bool { return !m.ended() }

func (m Member) ended() bool {
	process, err := proc.Reopen(m.Ident)
	if err == nil {
		defer process.Close()
		return process.Exiting()
	}
	return errors.Is(err, proc.ErrGone)
}

// PIDsOf are the pids of members.
func PIDsOf(members []Member) []int {
	pids := make([]int, len(members))
	for i, member := range members {
		pids[i] = member.PID
	}
	return pids
}

// IdentsOf are the members as processes.
func IdentsOf(members []Member) []proc.Ident {
	ids := make([]proc.Ident, len(members))
	for i, member := range members {
		ids[i] = member.Ident
	}
	return ids
}
