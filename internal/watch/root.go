package watch

import (
	"context"
	"time"

	"cucriu/criuutil"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
	"cucriu/internal/session"
)

// criu names the root task to its action scripts only once it exists. If criu is killed before that,
// the tasks wait for it and hold their pids, and nobody but us ends them. We must then be certain who
// they are: many processes may execute criu and have the pid 1. So pre-restore leaves a mark that they
// inherit.

// awaitRoot waits until the root task of a restore exists, as a child of criu or of the process that
// has asked for that (RootParent). It returns nil if criu ends before that.
func awaitRoot(ctx context.Context, s *journal.Record, criu *proc.Process) *proc.Ident {
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
			root := createdByCriu(s, pid)
			if root == nil {
				continue
			}
			if parent != criu.PID && !criuutil.HasMark(pid, s.Mark) {
				continue // another child of that process
			}
			return root
		}
		time.Sleep(2 * time.Millisecond) // there is no event for a stranger's fork
	}
	return nil
}

// createdByCriu returns the identity of a process, nil if it is older than criu.
func createdByCriu(s *journal.Record, pid int) *proc.Ident {
	id, err := proc.IdentOf(pid)
	if err != nil || id.StartTime < s.Criu.StartTime {
		return nil
	}
	return &id
}

// orphanedRoot finds the root task that a killed criu has left behind before anybody saw it. The
// suspects might be it or another restore's. There are none if criu was marked.
func orphanedRoot(s *journal.Record) (root *proc.Ident, suspects []int, err error) {
	pids, err := proc.All()
	if err != nil {
		return nil, nil, err
	}
	for _, pid := range pids {
		status, err := proc.ReadStatus(pid)
		if err != nil || status.ImagePID() != s.Manifest.RootPID {
			continue
		}
		created := createdByCriu(s, pid)
		if created == nil {
			continue
		}
		if s.CriuExe == "" || Executable(pid) != s.CriuExe {
			continue
		}
		if criuutil.HasMark(pid, s.Mark) {
			return created, nil, nil
		}
		if s.Mark == 0 && Executable(status.PPID) != s.CriuExe {
			suspects = append(suspects, pid)
		}
	}
	return nil, suspects, nil
}

// findRoot notes the root task that a killed criu has left behind, and returns the suspects.
func findRoot(s *session.Session) (suspects []int, err error) {
	s.Root, suspects, err = orphanedRoot(&s.Record)
	if len(suspects) > 0 {
		s.Env.Log.Warn("a process may be what this restore's criu has left behind, or another restore's: it is left alone", "session", s.Name(), "processes", suspects)
	}
	return suspects, err
}
