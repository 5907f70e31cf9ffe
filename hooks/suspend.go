package hooks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// Suspend checkpoints processes in place, without criu: their GPU memory moves into host
// memory, and their GPUs are free. It goes the way of a dump: the processes are locked
// while they run, then stopped, and only then checkpointed, because a thread that
// synchronized with the GPU would die. They are left stopped until [Hook.Resume]. A SIGCONT
// runs none of their threads, unless a warning says that one of the processes could not be
// parked. After an error, or if this program is killed, they run on.
func Suspend(ctx context.Context, h *Hook, pids []int) (_ Status, err error) {
	h = h.Filled()
	d := &suspension{Hook: h}
	defer func() {
		if err != nil {
			err = d.failed(err)
		}
		d.letGo()
	}()
	if err := take(ctx, d, pids); err != nil {
		return Status{}, err
	}
	processes := journal.ProcessesOf(d.members)
	findings, err := preflight.InspectNamed(ctx, d.driver, d.Config.RunDir, processes)
	if err != nil {
		return Status{}, err
	}
	for i, p := range processes {
		d.members[i].Known = p.Known
	}
	if err := d.Refuse(findings); err != nil {
		return Status{}, err
	}
	if err := requireRunning(ctx, d); err != nil {
		return Status{}, err
	}
	if d.session, err = beginSuspend(h, d.members, ""); err != nil {
		return Status{}, err
	}
	if err := d.session.startWatcher(); err != nil {
		return Status{}, err
	}
	err = d.session.doSteps(ctx, []step{
		{journal.StepLock, d.lockTargets},
		{journal.StepStop, d.stopTargets},
		{journal.StepPark, d.parkTargets},
		{journal.StepTrace, d.trace},
		{journal.StepCheckpoint, d.checkpoint},
		{journal.StepRelease, d.release},
	})
	if err != nil {
		return Status{}, err
	}
	if f := outcomeOf(d.members); len(f.ended) > 0 {
		return Status{}, errors.New(namedMembers(f.ended) + " ended while it was suspended: suspend what is left again")
	}
	err = noteSuspended(d.session, "")
	return StatusOf(d.session.Session), err
}

// beginSuspend begins a session for processes, at the step that they have reached. This
// program stands in for criu.
func beginSuspend(h *Hook, members []journal.Member, step journal.Step) (*session, error) {
	self, err := proc.IdentOf(os.Getpid())
	if err != nil {
		return nil, err
	}
	return h.newSession(journal.Record{Kind: journal.KindSuspend, Criu: self, Members: members, Ancestors: ancestorsOf(members), Step: step}, byCommand, 0)
}

// noteSuspended notes that the session waits for its resume, and kills the watcher. message is
// why an earlier resume failed; empty if there was none.
func noteSuspended(s *session, message string) error {
	s.Stuck, s.Message = false, message
	if err := s.doStep(journal.StepSuspended, func() error { return nil }); err != nil {
		return err
	}
	return killWatcher(&s.Record)
}

// Resume brings processes back from whatever state they are in: running, locked or
// checkpointed; stopped or not; suspended, or left so by a command that was killed.
// Processes that were suspended together are resumed together, on the GPUs to which the
// configuration maps them. It returns the sessions that it has closed. After an error the
// processes are as they were, and Resume can be tried again.
//
// If something else has checkpointed a process, nobody knows how much GPU memory its
// restore takes, and a process that runs out of memory is lost. With force, Resume tries
// all the same.
func Resume(ctx context.Context, h *Hook, pids []int, force bool) (resumed []Status, err error) {
	h = h.Filled()
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
		s, err := suspendedSession(ctx, h, pid)
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
		resumed = append(resumed, StatusOf(s.Session))
	}
	if len(unknown) == 0 {
		return resumed, nil
	}
	s, err := adopt(ctx, h, unknown, force)
	if err != nil || s == nil {
		return resumed, preflight.AsRefusal(err)
	}
	if err := resumeSession(ctx, s); err != nil {
		if preflight.Refused(err) { // the session was begun for this resume alone
			err = errors.Join(err, s.close(journal.OutcomeRunning, "the resume was refused, nothing was touched"))
		}
		return resumed, err
	}
	return append(resumed, StatusOf(s.Session)), nil
}

// suspendedSession finds and locks the session in which a process was suspended. It returns
// nil if there is none.
func suspendedSession(ctx context.Context, h *Hook, pid int) (*session, error) {
	s, err := sessionOfProcess(h.Config.RunDir, pid)
	if err != nil || s == nil {
		return nil, err
	}
	if s.Kind != journal.KindSuspend || !s.In(h.Config.RunDir) {
		return nil, s.Conflict()
	}
	busy := s.Conflict()
	// If the command was killed, a watcher may be at work on it.
	wait, cancel := context.WithTimeout(ctx, h.Config.Lock.Timeout)
	defer cancel()
	s, err = journal.LoadWithin(wait, s.Dir())
	if errors.Is(err, journal.ErrBusy) {
		return nil, errors.Join(busy, err)
	}
	if err != nil {
		return nil, err
	}
	if s.Outcome != "" {
		s.LetGo()
		return nil, nil // it has been brought back meanwhile
	}
	return h.takeOn(s, byCommand), nil
}

// adopt begins a session for processes that no session knows. It returns nil if they all
// run. They are let run in the end, even if they are stopped: that is how processes look
// whose journal was lost.
func adopt(ctx context.Context, h *Hook, pids []int, force bool) (*session, error) {
	d := &suspension{Hook: h}
	defer d.letGo()
	if err := take(ctx, d, pids); err != nil {
		return nil, err
	}
	if err := preflight.DifferentGPUs(journal.ProcessesOf(d.members)).Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, h.Config.Lock.Timeout)
	defer cancel()
	var needed atomic.Bool
	err := statesOf(ctx, d.targets, func(t *target, state cudackpt.State) error {
		switch {
		case state == cudackpt.StateFailed:
			return fmt.Errorf("process %d (%s) is %v: %s", t.PID, t.member.Name, state, preflight.StateRemedy(t.PID, state))
		case state == cudackpt.StateCheckpointed && !force:
			return fmt.Errorf("process %d (%s) was checkpointed by something else than cucriu suspend, and how much GPU memory its restore takes is not known; "+
				"if it ran out of it, the process would be lost: free its GPUs and use --force", t.PID, t.member.Name)
		}
		if state != cudackpt.StateRunning || t.member.Stopped {
			needed.Store(true)
		}
		return nil
	})
	if err != nil || !needed.Load() {
		return nil, err
	}
	for i := range d.members {
		d.members[i].Stopped = false
	}
	return beginSuspend(h, d.members, journal.StepSuspended)
}

// resumeSession brings the processes of a locked session back, and closes it.
func resumeSession(ctx context.Context, s *session) (err error) {
	defer s.LetGo()
	driver, err := s.env.OpenDriver()
	if err != nil {
		return preflight.AsRefusal(err)
	}
	before := outcomeOf(s.Members)
	s.Members = before.alive
	targets, err := openMembers(driver, s.Members)
	if err != nil {
		return err
	}
	defer closeTargets(targets)
	if err := planPairs(driver, s); err != nil {
		return preflight.AsRefusal(err)
	}
	if err := requireRoom(ctx, &s.Record, driver); err != nil {
		return preflight.AsRefusal(err)
	}
	if err := ctx.Err(); err != nil {
		return preflight.AsRefusal(fmt.Errorf("given up before anything was touched: %w", context.Cause(ctx)))
	}
	ctx = context.WithoutCancel(ctx) // it is not given up half way: each step has its timeout
	if err := killWatcher(&s.Record); err != nil {
		return err
	}
	if s.Criu, err = proc.IdentOf(os.Getpid()); err != nil {
		return err
	}
	s.Watcher, s.BackBegun = nil, true
	err = s.doStep(journal.StepResume, func() error {
		if err := s.startWatcher(); err != nil {
			return err
		}
		return bringBack(ctx, driver, s, targets)
	})
	if err != nil {
		if f := outcomeOf(s.Members); len(f.alive) > 0 {
			message := "the last resume failed: " + err.Error()
			err = errors.Join(err, f.err("is not resumed"))
			if noteErr := noteSuspended(s, message); noteErr != nil {
				return errors.Join(err, fmt.Errorf("%w: %w", ErrNotBack, noteErr))
			}
			return err
		}
		f, closeErr := s.closeAlive(journal.OutcomeRunning, "the resume failed; ", "", before.ended...)
		return errors.Join(err, f.err(""), closeErr)
	}
	f, err := s.closeAlive(journal.OutcomeRunning, "resumed: ", "runs", before.ended...)
	return errors.Join(err, f.err("runs"))
}

// requireRoom refuses to resume what was suspended if the GPUs lack the memory for it,
// before any process is touched. The memory is checked again just before the restore.
func requireRoom(ctx context.Context, s *journal.Record, driver *cudackpt.Driver) error {
	if !s.Suspended() || s.BackBegun {
		return nil // how far the suspend, or an earlier resume, came is found out on the way back
	}
	need := make(preflight.MemoryNeed)
	for i := range s.Members {
		if held, err := driver.ProcessMemory(ctx, s.Members[i].PID); err == nil && len(held) > 0 {
			continue // somebody else has restored it
		}
		need.Add(s.Members[i].MemoryBytes, s.Members[i].Pairs)
	}
	return need.Require(ctx, driver)
}
