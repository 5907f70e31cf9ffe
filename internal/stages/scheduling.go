package stages

import (
	"errors"
	"runtime"
	"slices"

	"cucriu/internal/engine"
	"cucriu/internal/proc"
	"cucriu/internal/session"
)

// schedulingOf lists what criu does not restore of the threads of a tree.
func schedulingOf(root int) ([]proc.Scheduling, error) {
	hierarchies, err := proc.ReadHierarchies()
	if err != nil {
		return nil, err
	}
	pids, err := proc.Tree(root)
	if err != nil {
		return nil, err
	}
	found := make([][]proc.Scheduling, len(pids))
	err = engine.ParallelUpTo(runtime.NumCPU(), len(pids), func(i int) (err error) {
		if found[i], err = hierarchies.ReadScheduling(pids[i]); errors.Is(err, proc.ErrGone) {
			return nil
		}
		return err
	})
	return slices.Concat(found...), err
}

// reschedule gives the threads of a restored tree what criu does not restore. A job that runs elsewhere
// than it did is better than none, so what cannot be had is only logged.
func reschedule(s *session.Session) {
	had := make(map[int]proc.Scheduling)
	for _, scheduling := range s.Manifest.Scheduling {
		had[scheduling.TID] = scheduling
	}
	if len(had) == 0 {
		return
	}
	pids, err := proc.Tree(s.Root.PID)
	if err != nil {
		s.Env.Log.Warn("the threads are not scheduled as they were", "error", err)
	}
	for _, pid := range pids {
		tids, err := proc.Threads(pid)
		if err != nil {
			continue // it has ended
		}
		for _, tid := range tids {
			status, err := proc.ReadStatus(tid)
			if err != nil {
				continue
			}
			if err := had[status.ImagePID()].Apply(tid); err != nil {
				s.Env.Log.Warn("a thread is not scheduled as it was", "pid", pid, "tid", tid, "name", status.Name, "error", err)
			}
		}
	}
}
