package journal

import (
	"errors"
	"fmt"

	"cucriu/internal/core/gpumap"
	"cucriu/internal/core/inspect"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/proc"
)

// Member is one CUDA process of a session.
type Member struct {
	inspect.Process
	// Own identifies the process for sessions of other run directories: see [proc.Ident.Own].
	Own *proc.Ident `json:"own,omitempty"`
	// PrivateBefore is how much private memory the process had mapped before the checkpoint, in bytes.
	PrivateBefore uint64 `json:"private_before,omitempty"`
	// Pairs is the process's part of the plan. Without pairs, the process stays on the same GPUs.
	Pairs gpumap.Pairs `json:"pairs,omitempty"`
	// Gated says that the library in the process may hold its calls to the driver back. It must be found again.
	Gated bool `json:"gated,omitempty"`
	// Moved says that it may have moved GPU memory to the host, and has to bring it back.
	Moved bool `json:"moved,omitempty"`
	// Out says where the library has put the memory in the process; nil if it has not.
	Out *imagedir.Out `json:"out,omitempty"`
	// Base is an earlier image, which has memory that this dump does not copy again.
	Base *MemberBase `json:"base,omitempty"`
	// Unchanged is how much that is, in bytes.
	Unchanged uint64 `json:"unchanged,omitempty"`
	// Pages describes the memory that the fast lane has copied, or is to fill in.
	Pages *MemberPages `json:"pages,omitempty"`
}

// MembersOf makes members of a session from processes.
func MembersOf(processes []inspect.Process) []Member {
	members := make([]Member, len(processes))
	for i, p := range processes {
		members[i].Process = p
	}
	return members
}

// ProcessesOf returns the members' processes as they were inspected.
func ProcessesOf(members []Member) []inspect.Process {
	processes := make([]inspect.Process, len(members))
	for i, m := range members {
		processes[i] = m.Process
	}
	return processes
}

// MemberPages describes the part of a process's memory that the fast lane handles.
type MemberPages struct {
	// Listing names the files. Until they are complete, it says nothing else about them.
	Listing *pages.Listing `json:"listing"`
	// WatcherFD is the first of the watcher's descriptors for these files.
	WatcherFD int `json:"watcher_fd"`
	// Dropped says that the memory may no longer be in the process.
	Dropped bool `json:"dropped"`
}

// MemberBase describes an earlier image of a process.
type MemberBase struct {
	Dir     string         `json:"dir"`
	PID     int            `json:"pid"` // of the process in it
	Listing *pages.Listing `json:"listing"`
	// WatcherFD is the first of the watcher's descriptors for its files.
	WatcherFD int `json:"watcher_fd"`
}

func (b *MemberBase) validate() error {
	switch {
	case b == nil:
		return nil
	case b.Listing == nil || b.WatcherFD < FirstWatcherFD || b.PID <= 0:
		return errors.New("it is based on no image")
	}
	return b.Listing.Validate()
}

// validate refuses what this program cannot have written.
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

// FirstWatcherFD is the first descriptor that a watcher inherits after its standard streams.
const FirstWatcherFD = 3

// PagesToFill returns what a restore has to fill in for one process. fd is the first of the watcher's
// descriptors that is not assigned yet; PagesToFill moves it on.
func PagesToFill(l *pages.Listing, fd *int) *MemberPages {
	if l == nil {
		return nil
	}
	p := &MemberPages{Listing: l, WatcherFD: *fd, Dropped: true}
	*fd += l.Files()
	return p
}

// IdentsOf returns the identities of the members' processes.
func IdentsOf(members []Member) []proc.Ident {
	ids := make([]proc.Ident, len(members))
	for i, member := range members {
		ids[i] = member.Ident
	}
	return ids
}
