package hooks

import (
	"context"
	"time"

	"cucriu/criuutil"
	"cucriu/criuutil/proc"
)

// criu names the root task to its action scripts only once it exists, and ends by
// itself what it has created if it fails. If it is killed before, the tasks wait for
// it for ever, hold their pids, and nobody ends them but us. Who they are must be
// certain then: on a host that restores containers, many a process executes criu and
// has the pid 1. So pre-restore leaves a mark that they inherit.

// awaitRoot waits until the root task of a restore exists, and returns nil if criu
// ends before. It is a child of criu, or of the process that has asked for that.
func (s *session) awaitRoot(ctx context.Context, criu *proc.Process) *proc.Ident {
	parent := criu.PID
	if s.RootParent != nil {
		parent = s.RootParent.PID
	}
	for criu.Alive() && ctx.Err() == nil {
		children, err := proc.Children(parent)
		if err != nil {
			return nil
		}
		for _, pid := range children {
			child, err := proc.ReadStatus(pid)
			if err != nil || child.PPID != parent || child.ImagePID() != s.Manifest.RootPID {
				continue
			}
			root := s.createdByCriu(pid)
			if root == nil {
				continue
			}
			if parent != criu.PID && !criuutil.HasMark(pid, s.Mark) {
				continue // another child of that process
			}
			return root
		}
		time.Sleep(2 * time.Millisecond) // no event tells of a stranger's fork
	}
	return nil
}

// createdByCriu takes note of a process, unless it is older than criu.
func (s *session) createdByCriu(pid int) *proc.Ident {
	process, err := proc.Open(pid)
	if err != nil {
		return nil
	}
	defer process.Close()
	if process.StartTime < s.Criu.StartTime {
		return nil
	}
	return &process.Ident
}

// orphanedRoot finds the root task that a killed criu has left behind before anybody
// saw it. Suspects are processes that might be it or might be another restore's; there
// are none if criu was marked.
func (s *session) orphanedRoot() (root *proc.Ident, suspects []int, err error) {
	pids, err := proc.All()
	if err != nil {
		return nil, nil, err
	}
	for _, pid := range pids {
		status, err := proc.ReadStatus(pid)
		if err != nil || status.ImagePID() != s.Manifest.RootPID {
			continue
		}
		created := s.createdByCriu(pid)
		if created == nil {
			continue
		}
		if s.CriuExe == "" || executable(pid) != s.CriuExe {
			continue
		}
		if criuutil.HasMark(pid, s.Mark) {
			return created, nil, nil
		}
		if s.Mark == 0 && executable(status.PPID) != s.CriuExe {
			suspects = append(suspects, pid)
		}
	}
	return nil, suspects, nil
}
