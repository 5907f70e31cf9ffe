package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"cucriu/cudackpt"
	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/engine"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
)

// Suspend checkpoints processes in place, without criu: their GPU memory moves into host memory, and
// their GPUs are free. They are left stopped until [Resume]. A SIGCONT runs none of their threads,
// unless a warning says that a process could not be parked. After an error, or if this program is
// killed, they run on.
func Suspend(ctx context.Context, hook *hooks.Hook, pids []int) (Status, error) {
	env := session.Of(hook)
	d := &engine.Suspension{Env: env}
	defer d.Close()
	if err := suspend(ctx, d, pids); err != nil {
		return Status{}, d.Failed(err)
	}
	return statusOf(d.Session.Session), nil
}

func suspend(ctx context.Context, d *engine.Suspension, pids []int) error {
	if err := take(ctx, d, pids); err != nil {
		return err
	}
	processes := journal.ProcessesOf(d.Members)
	findings, err := inspect.Named(ctx, d.Driver, processes)
	if err != nil {
		return err
	}
	for i, p := range processes {
		d.Members[i].Known = p.Known
	}
	var room inspect.Room
	lack, late, err := room.Foresee(processes)
	if err != nil {
		return err
	}
	if late {
		d.JudgeRoom = func() (preflight.Findings, error) { return room.Judge(journal.ProcessesOf(d.Members)) }
	}
	if err := d.Refuse(slices.Concat(findings, lack, inspect.TracedFindings(processes))); err != nil {
		return err
	}
	if err := requireRunning(ctx, d); err != nil {
		return err
	}
	if d.Session, err = beginSuspend(d.Env, d.Members, ""); err != nil {
		return err
	}
	if err := d.Session.StartWatcher(); err != nil {
		return err
	}
	err = d.Session.DoSteps(ctx, []session.Step{
		{Name: journal.StepLock, Do: d.Lock},
		{Name: journal.StepStop, Do: d.Stop},
		{Name: journal.StepMove, Do: func(ctx context.Context) error { return d.MoveMemory(ctx, d.Stop) }},
		{Name: journal.StepPark, Do: d.Park},
		{Name: journal.StepTrace, Do: d.Trace},
		{Name: journal.StepCheckpoint, Do: d.Checkpoint},
		{Name: journal.StepRelease, Do: d.Release},
	})
	if err != nil {
		return err
	}
	if f := session.OutcomeOf(d.Members); len(f.Ended) > 0 {
		return errors.New(session.NamedMembers(f.Ended) + " ended while it was suspended: suspend the remaining processes again")
	}
	return noteSuspended(d.Session, "")
}

// beginSuspend begins a session for processes, at the step that they have reached. This program stands
// in for criu.
func beginSuspend(env *session.Env, members []journal.Member, step journal.Step) (*session.Session, error) {
	self, err := proc.IdentOf(os.Getpid())
	if err != nil {
		return nil, err
	}
	return env.NewSession(journal.Record{Kind: journal.KindSuspend, Criu: self, Members: members, Ancestors: session.AncestorsOf(members), Step: step}, session.ByCommand, 0)
}

// noteSuspended notes that the session waits for its resume, and kills the watcher. message is why an
// earlier resume failed; empty if there was none.
func noteSuspended(s *session.Session, message string) error {
	s.Stuck, s.Message = false, message
	if err := s.DoStep(journal.StepSuspended, func() error { return nil }); err != nil {
		return err
	}
	return session.KillWatcher(&s.Record)
}

// Resume resumes processes from whatever state they are in. Those that were suspended together are
// resumed together, on the GPUs to which the configuration maps them. It returns the sessions that it
// has closed. After an error the processes are as they were, and Resume can be tried again. If
// something else has checkpointed a process, nobody knows how much GPU memory its restore takes, and a
// process that runs out of memory is lost: only with force does Resume try.
func Resume(ctx context.Context, hook *hooks.Hook, pids []int, force bool) (resumed []Status, err error) {
	env := session.Of(hook)
	defer func() {
		if len(resumed) > 0 {
			err = preflight.AsFailure(err)
		}
	}()
	resumed = []Status{} // not nil: null is no list in JSON
	var unknown []int
	done := make(map[int]bool)
	for _, pid := range pids {
		if done[pid] {
			continue
		}
		done[pid] = true
		s, err := suspendedSession(ctx, env, pid)
		if err != nil {
			return resumed, preflight.AsRefusal(err)
		}
		if s == nil {
			unknown = append(unknown, pid)
			continue
		}
		for _, member := range s.Members {
			done[member.PID] = true
		}
		if err := resumeSession(ctx, s); err != nil {
			return resumed, err
		}
		resumed = append(resumed, statusOf(s.Session))
	}
	if len(unknown) == 0 {
		return resumed, nil
	}
	s, err := adopt(ctx, env, unknown, force)
	if err != nil || s == nil {
		return resumed, preflight.AsRefusal(err)
	}
	if err := resumeSession(ctx, s); err != nil {
		if preflight.Refused(err) { // the session was begun for this resume alone
			err = errors.Join(err, s.Close(journal.OutcomeRunning, "the resume was refused, nothing was touched"))
		}
		return resumed, err
	}
	return append(resumed, statusOf(s.Session)), nil
}

// suspendedSession finds and locks the session in which a process was suspended. It returns nil if
// there is none.
func suspendedSession(ctx context.Context, env *session.Env, pid int) (*session.Session, error) {
	s, err := sessionOfProcess(env.Config.RunDir, pid)
	if err != nil || s == nil {
		return nil, err
	}
	if s.Kind != journal.KindSuspend || !s.In(env.Config.RunDir) {
		return nil, s.Conflict()
	}
	busy := s.Conflict()
	// If the command was killed, a watcher may be at work on it.
	wait, cancel := context.WithTimeout(ctx, env.Config.Lock.Timeout)
	defer cancel()
	s, err = journal.LoadWithin(wait, s.Dir())
	if errors.Is(err, journal.ErrBusy) {
		return nil, errors.Join(busy, err)
	}
	if err != nil {
		return nil, err
	}
	if s.Outcome != "" {
		s.Unlock()
		return nil, nil // it has been resumed meanwhile
	}
	return env.TakeOn(s, session.ByCommand), nil
}

// adopt begins a session for processes that no session knows; nil if they all run. They are let run in
// the end, even if they are stopped: that is how processes look whose journal was lost.
func adopt(ctx context.Context, env *session.Env, pids []int, force bool) (*session.Session, error) {
	d := &engine.Suspension{Env: env}
	defer d.Close()
	if err := take(ctx, d, pids); err != nil {
		return nil, err
	}
	if err := inspect.DifferentGPUs(journal.ProcessesOf(d.Members)).Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, env.Config.Lock.Timeout)
	defer cancel()
	var needed atomic.Bool
	err := engine.StatesOf(ctx, d.Targets, func(t *engine.Target, state cudackpt.State) error {
		switch {
		case state == cudackpt.StateFailed:
			return fmt.Errorf("process %d (%s) is %v: %s", t.PID, t.Member.Name, state, inspect.StateRemedy(t.PID, state))
		case state == cudackpt.StateCheckpointed && !force:
			return fmt.Errorf("process %d (%s) was not checkpointed by cucriu suspend, and the GPU memory that its restore needs is not known; "+
				"if it ran out of memory, the process would be lost: free its GPUs and use --force", t.PID, t.Member.Name)
		}
		if state != cudackpt.StateRunning || t.Member.Stopped {
			needed.Store(true)
		}
		return nil
	})
	if err != nil || !needed.Load() {
		return nil, err
	}
	for i := range d.Members {
		d.Members[i].Stopped = false
	}
	return beginSuspend(env, d.Members, journal.StepSuspended)
}

// resumeSession resumes the processes of a locked session, and closes it.
func resumeSession(ctx context.Context, s *session.Session) (err error) {
	defer s.Unlock()
	driver, err := s.Env.OpenDriver()
	if err != nil {
		return preflight.AsRefusal(err)
	}
	before := session.OutcomeOf(s.Members)
	s.Members = before.Alive
	targets, err := engine.OpenMembers(driver, s.Members)
	if err != nil {
		return err
	}
	defer engine.CloseTargets(targets)
	if err := engine.PlanPairs(driver, s, s.Env.Config.GPUs); err != nil {
		return preflight.AsRefusal(err)
	}
	if err := requireRoom(ctx, s.Env, &s.Record, driver); err != nil {
		return preflight.AsRefusal(err)
	}
	if err := ctx.Err(); err != nil {
		return preflight.AsRefusal(context.Cause(ctx))
	}
	ctx = context.WithoutCancel(ctx) // it is not given up half way: each step has its timeout
	if err := session.KillWatcher(&s.Record); err != nil {
		return err
	}
	if s.Criu, err = proc.IdentOf(os.Getpid()); err != nil {
		return err
	}
	s.Watcher, s.BackBegun = nil, true
	err = s.DoStep(journal.StepResume, func() error {
		if err := s.StartWatcher(); err != nil {
			return err
		}
		return engine.BringBack(ctx, driver, s, targets)
	})
	if err != nil {
		if f := session.OutcomeOf(s.Members); len(f.Alive) > 0 {
			message := "the last resume failed: " + err.Error()
			err = errors.Join(err, f.Err("is not resumed"))
			if noteErr := noteSuspended(s, message); noteErr != nil {
				return errors.Join(err, fmt.Errorf("%w: %w", hooks.ErrNotBack, noteErr))
			}
			return err
		}
		f, closeErr := s.CloseAlive(journal.OutcomeRunning, "the resume failed; ", "", before.Ended...)
		return errors.Join(err, f.Err(""), closeErr)
	}
	f, err := s.CloseAlive(journal.OutcomeRunning, "resumed: ", "runs", before.Ended...)
	return errors.Join(err, f.Err("runs"))
}

// requireRoom refuses to resume what was suspended if the GPUs lack the memory for it, before any
// process is touched. The memory is checked again just before the restore.
func requireRoom(ctx context.Context, env *session.Env, s *journal.Record, driver *cudackpt.Driver) error {
	if !s.Suspended() || s.BackBegun {
		return nil // how far the suspend, or an earlier resume, came is found out on the way back
	}
	need := make(inspect.MemoryNeed)
	for i := range s.Members {
		if held, err := driver.ProcessMemory(ctx, s.Members[i].PID); err == nil && len(held) > 0 {
			continue // somebody else has restored it
		}
		need.Add(s.Members[i].MemoryBytes, s.Members[i].Pairs)
	}
	return env.AwaitRoom(ctx, func() error { return need.Require(ctx, driver, env.Promised(nil, nil)) })
}

// The operators' commands name processes, while criu's stages name a tree. The commands leave the
// children of these processes alone.

// Lock locks processes as a dump does: all of them or none, within lock.timeout. It writes no journal:
// whoever locks must unlock. After an error none is locked, unless it wraps [hooks.ErrNotBack].
func Lock(ctx context.Context, hook *hooks.Hook, pids []int) error {
	env := session.Of(hook)
	d := &engine.Suspension{Env: env}
	defer d.Close()
	err := take(ctx, d, pids)
	if err == nil {
		err = requireRunning(ctx, d)
	}
	if err != nil {
		return preflight.AsRefusal(err)
	}
	if err := d.Lock(ctx); err != nil {
		if undoErr := d.UnlockAll(context.Background(), env.Config.Restore.Timeout); undoErr != nil {
			return errors.Join(preflight.AsFailure(err), fmt.Errorf("%w, cucriu unlock tries again: %w", hooks.ErrNotBack, undoErr))
		}
		return preflight.AsFailure(fmt.Errorf("%w; none is locked", err))
	}
	return nil
}

// Unlock unlocks processes, and returns those that were locked. One that runs is left as it is, and one
// that was stopped stays stopped.
func Unlock(ctx context.Context, hook *hooks.Hook, pids []int) (locked []int, err error) {
	env := session.Of(hook)
	d := &engine.Suspension{Env: env}
	defer d.Close()
	if err := take(ctx, d, pids); err != nil {
		return nil, preflight.AsRefusal(err)
	}
	asking, cancel := context.WithTimeout(ctx, env.Config.Lock.Timeout)
	defer cancel()
	// A process that is checkpointed must not run, not even under trace.
	var noting sync.Mutex
	err = engine.StatesOf(asking, d.Targets, func(t *engine.Target, state cudackpt.State) error {
		switch state {
		case cudackpt.StateLocked:
			noting.Lock()
			defer noting.Unlock()
			locked = append(locked, t.PID)
			return nil
		case cudackpt.StateRunning:
			return nil
		}
		return fmt.Errorf("process %d (%s) is %v, not locked: %s", t.PID, t.Member.Name, state, inspect.StateRemedy(t.PID, state))
	})
	if err != nil {
		return nil, preflight.AsRefusal(err)
	}
	// It is not given up half way. After an error they are locked as before.
	return locked, d.UnlockAll(context.WithoutCancel(ctx), env.Config.Lock.Timeout)
}

// sessionOfProcess finds the open session that a process is in, nil if there is none.
func sessionOfProcess(runDir string, pid int) (*journal.Session, error) {
	findings, err := inspect.ProcessFindings(pid)
	if err != nil {
		return nil, err
	}
	if len(findings) > 0 && findings[0].Name != preflight.FindingZombie { // the session of a zombie may have others
		f := explainGone(runDir, findings)[0]
		return nil, fmt.Errorf("%s %s: %s", f.Subject(), f.Message, f.Remedy)
	}
	id, err := proc.IdentOf(pid)
	if err != nil {
		return nil, err
	}
	return journal.FindOpen(runDir, id, []journal.Member{{Process: inspect.Process{Ident: id}}})
}

// take takes hold of processes. It fails if somebody else is at work on one of them.
func take(ctx context.Context, s *engine.Suspension, pids []int) error {
	ctx, cancel := context.WithTimeout(ctx, s.Patience(pids...))
	defer cancel()
	pids = slices.Compact(slices.Sorted(slices.Values(pids)))
	for _, pid := range pids {
		other, err := sessionOfProcess(s.Config.RunDir, pid)
		if err != nil || other != nil {
			return errors.Join(err, other.Conflict())
		}
	}
	for _, pid := range pids {
		process, err := inspectNamed(ctx, s, pid)
		if err != nil {
			return err
		}
		s.Members = append(s.Members, journal.Member{Process: *process})
	}
	var err error
	if s.Targets, err = engine.OpenMembers(s.Driver, s.Members); err != nil {
		return err
	}
	if len(s.Targets) != len(s.Members) {
		return errors.New("a process ended while it was inspected")
	}
	return nil
}

// inspectNamed inspects a process that must have CUDA and be reachable.
func inspectNamed(ctx context.Context, s *engine.Suspension, pid int) (*inspect.Process, error) {
	frozen, err := proc.FrozenBy(pid)
	if err != nil {
		return nil, err
	}
	if len(frozen) > 0 {
		return nil, fmt.Errorf("process %d is frozen by control group %s, so the driver cannot reach it: thaw it first", pid, frozen[0].Dir)
	}
	if parked, err := inject.LooksParked(pid); err != nil || parked {
		if err == nil {
			err = session.Unhooked(s.Config.RunDir, pid)
		}
		if err == nil {
			err = session.OtherRunDir(s.Config.RunDir, pid)
		}
		return nil, err
	}
	seen, err := inspect.One(ctx, pid, s.LoadDriver)
	if err == nil {
		err = seen.Findings.Err()
	}
	if err == nil && seen.Holder != nil {
		err = fmt.Errorf("process %d (%s) holds GPU devices but has no CUDA state, like a child that was forked from a CUDA process: name the CUDA process itself (cucriu status lists them)", pid, seen.Name)
	} else if err == nil && seen.Process == nil {
		err = fmt.Errorf("process %d uses no CUDA: name one that does (cucriu status lists them)", pid)
	}
	return seen.Process, err
}

// requireRunning refuses processes that do not run, within lock.timeout.
func requireRunning(ctx context.Context, s *engine.Suspension) error {
	asking, cancel := context.WithTimeout(ctx, s.PatienceForAll())
	defer cancel()
	return engine.StatesOf(asking, s.Targets, engine.WantRunning)
}
