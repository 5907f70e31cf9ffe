package stages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/internal/core/engine"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/core/watch"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// rootNamed records the root task at the stages where criu first names it. If criu is killed after
// that, the watcher knows what to end.
func (c *call) rootNamed(ctx context.Context) error {
	if c.stage.InitPID == "" {
		return nil
	}
	if err := c.checkRestored(); err != nil {
		return err
	}
	s, err := c.openSession(journal.KindRestore)
	if err != nil || s == nil {
		return err
	}
	defer s.Unlock()
	if err := noteRoot(s, c.stage); err != nil {
		return err
	}
	err = s.Failpoint(ctx, "restore."+c.stage.Action)
	if err != nil || c.stage.Action != criuutil.StagePostRestore || s.Plan == nil {
		return err
	}
	return c.planAsSeen(ctx, s)
}

func noteRoot(s *session.Session, stage Stage) error {
	pid, err := stage.root()
	if err != nil {
		return err
	}
	root, err := proc.IdentOf(pid)
	if err != nil {
		return err
	}
	s.Root, s.Step = &root, journal.Step(stage.Action)
	session.NoteTree(&s.Record)
	if stage.Action == criuutil.StagePostRestore || stage.Action == criuutil.StagePreResume {
		session.NoteRestored(&s.Record)
	} else {
		session.NoteResident(&s.Record)
	}
	return s.Save()
}

// preResume sends every process a SIGSTOP. They are in criu's ptrace-stop now; the signal takes effect
// before they run a single instruction.
func (c *call) preResume(ctx context.Context) error {
	if err := c.checkRestored(); err != nil {
		return err
	}
	s, err := c.openSession(journal.KindRestore)
	if err == nil && s == nil {
		if _, manifestErr := os.Lstat(filepath.Join(c.stage.ImageDir, imagedir.ManifestName)); errors.Is(manifestErr, os.ErrNotExist) {
			return nil
		}
		err = errors.New("the session that pre-restore made for this image is gone from the run directory")
	}
	if err != nil {
		return c.killRestored(err)
	}
	defer s.Unlock()
	s.NoteCriu()
	err = s.DoStep(journal.StepPreResume, func() error {
		if err := noteRoot(s, c.stage); err != nil {
			return err
		}
		if err := watch.EndIfRefused(ctx, s); err != nil {
			return err
		}
		byImagePID, members, err := findMembers(&s.Record)
		if err != nil {
			return err
		}
		s.Members, s.Others = members, nil
		if err := noteParked(s, byImagePID); err != nil {
			return err
		}
		if err := session.SignalKnown(unix.SIGSTOP, journal.IdentsOf(s.Members)...); err != nil {
			return err
		}
		if err := holdOthers(&s.Record); err != nil {
			return err
		}
		// One that was dumped on the way to a stop, because it saw its child stop, goes there when it is continued.
		s.Ancestors = slices.DeleteFunc(session.AncestorsOf(s.Members), func(id proc.Ident) bool { return !slices.Contains(s.Others, id) })
		reschedule(s)
		applySettings(s)
		return s.Save()
	})
	if errors.Is(err, watch.ErrDecided) {
		return err
	}
	if err != nil {
		return watch.KillOrLeaveAndFail(s, err)
	}
	s.Note() // criu's time is counted from here
	return nil
}

// holdOthers stops the processes without CUDA, too, until the GPU state is there. If it does not come,
// the job is ended as it was dumped: a process that had written to its files by then would make criu
// take them for another job's.
func holdOthers(s *journal.Record) error {
	pids, err := proc.Tree(s.Root.PID)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		process, err := proc.Open(pid)
		if errors.Is(err, proc.ErrGone) {
			continue // a zombie, which is restored as one
		}
		if err != nil {
			return err
		}
		err = holdOther(s, process)
		process.Close()
		if err != nil && !errors.Is(err, proc.ErrGone) {
			return err
		}
	}
	return nil
}

func holdOther(s *journal.Record, process *proc.Process) error {
	status, err := proc.ReadStatus(process.PID)
	if err != nil {
		return err
	}
	isMember := slices.ContainsFunc(s.Members, func(m journal.Member) bool { return m.Ident == process.Ident })
	if isMember || slices.Contains(s.Manifest.StoppedOthers, status.ImagePID()) {
		return nil
	}
	s.Others = append(s.Others, process.Ident)
	return process.Signal(unix.SIGSTOP)
}

// findMembers finds the processes of the manifest in the tree that criu named. The image knows them by the pid in their
// innermost pid namespace.
func findMembers(s *journal.Record) (byImagePID map[int][]int, members []journal.Member, err error) {
	pids, err := proc.Tree(s.Root.PID)
	if err != nil {
		return nil, nil, err
	}
	byImagePID = make(map[int][]int)
	for _, pid := range pids {
		status, err := proc.ReadStatus(pid)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		byImagePID[status.ImagePID()] = append(byImagePID[status.ImagePID()], pid)
	}
	fd := journal.FirstWatcherFD
	for _, p := range s.Manifest.Processes {
		found := byImagePID[p.PID]
		if len(found) != 1 {
			err = fmt.Errorf("process %d (%s) of the manifest is found %d times in the restored tree", p.PID, p.Name, len(found))
			return nil, nil, err
		}
		id, err := proc.IdentOf(found[0])
		if err != nil {
			return nil, nil, err
		}
		members = append(members, journal.Member{
			Process: inspect.Process{Ident: id, ImagePID: p.PID, Name: p.Name, Stopped: p.Stopped, GPUs: p.GPUs, MemoryBytes: p.MemoryBytes},
			Pairs:   s.Plan.Of(p.GPUs),
			Pages:   journal.PagesToFill(p.Pages, &fd),
			Gated:   p.Gated,
		})
	}
	return byImagePID, members, nil
}

// noteParked notes the parked threads of the processes that criu has restored. One that was killed
// before criu dumped it is not in the image, or is a zombie there.
func noteParked(s *session.Session, byImagePID map[int][]int) error {
	for _, parked := range s.Manifest.Parked {
		pids := byImagePID[parked.PID]
		if len(pids) == 0 {
			continue
		}
		if len(pids) > 1 {
			return fmt.Errorf("process %d of the manifest is found %d times in the restored tree", parked.PID, len(pids))
		}
		process, err := proc.Open(pids[0])
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			return err
		}
		err = parked.WriteRestored(process, s.ParkedFile(process.PID))
		process.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// checkRestored refuses a root task that criu cannot have restored because it is older than criu. The
// restore side ends the tree when it fails, and must not end this one.
func (c *call) checkRestored() error {
	pid, err := c.stage.root()
	if err != nil {
		return nil // the stage that needs it says so
	}
	root, err := proc.IdentOf(pid)
	if errors.Is(err, proc.ErrGone) {
		return nil // it has been ended already
	}
	if err != nil {
		return err
	}
	if root.StartTime < c.criu.StartTime {
		return fmt.Errorf("CRTOOLS_INIT_PID names process %d, which is older than criu process %d and was not restored by it: was this program started by criu?", pid, c.criu.PID)
	}
	return nil
}

// killRestored kills the tree of a restore that has no session.
func (c *call) killRestored(cause error) error {
	pid, err := c.stage.root()
	var root proc.Ident
	if err == nil {
		root, err = proc.IdentOf(pid)
	}
	if err == nil {
		err = session.KillTree(&journal.Record{Root: &root})
	}
	if err != nil {
		return errors.Join(cause, err)
	}
	return fmt.Errorf("%w; %s", cause, watch.TreeEnded)
}

// schedulingOf lists what criu does not restore of the threads of processes.
func schedulingOf(pids []int) ([]proc.Scheduling, error) {
	hierarchies, err := proc.ReadHierarchies()
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
		s.Env.Log.Warn("the scheduling of the threads was not restored", "error", err)
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
				s.Env.Log.Warn("the scheduling of a thread was not restored", "pid", pid, "tid", tid, "name", status.Name, "error", err)
			}
		}
	}
}

// settingsOf lists what criu does not restore of the processes of a tree.
func settingsOf(tree *inventory.Tree) ([]proc.Settings, error) {
	found := make([]*proc.Settings, len(tree.Processes))
	err := engine.ParallelUpTo(runtime.NumCPU(), len(found), func(i int) (err error) {
		if found[i], err = tree.Processes[i].Settings(); errors.Is(err, proc.ErrGone) {
			return nil
		}
		return err
	})
	var all []proc.Settings
	for _, one := range found {
		if one != nil {
			all = append(all, *one)
		}
	}
	return all, err
}

// applySettings gives the processes of a restored tree what criu does not restore. What cannot be had is only logged.
func applySettings(s *session.Session) {
	had := make(map[int]proc.Settings)
	for _, settings := range s.Manifest.Settings {
		had[settings.PID] = settings
	}
	if len(had) == 0 {
		return
	}
	pids, err := proc.Tree(s.Root.PID)
	if err != nil {
		s.Env.Log.Warn("the settings of the processes were not restored", "error", err)
	}
	for _, pid := range pids {
		status, err := proc.ReadStatus(pid)
		if err != nil {
			continue // it has ended
		}
		if err := had[status.ImagePID()].Apply(pid); err != nil {
			s.Env.Log.Warn("settings of a process were not restored", "pid", pid, "name", status.Name, "error", err)
		}
	}
}
