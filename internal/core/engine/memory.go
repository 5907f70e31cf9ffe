package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/core/agent"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/drivers"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
)

// The driver copies the memory of a GPU to the host with one thread. The library in the job (internal/kit/guest)
// uses many, and the driver has little left to copy. For that it calls the driver, so the process is not
// locked meanwhile:
//
//	prepare   the library's threads get ready, if no filter of theirs forbids what they will call
//	close     from now on the program's calls to the driver wait at the library's gate
//	lock      as without the library; it is let go again, and taken and let go once more, so that calls
//	          which had begun end
//	stop      every thread; those of the program are parked
//	proof     the driver can lock the process while the program's threads are parked, so none of them
//	          is in a call. If it cannot, everything is continued, and the driver has to do the work
//	out       with the driver's threads and the library's alone; then the process is locked for good,
//	          and these are parked, too
//
// The copies are in new private memory of the process, as those of the driver, and from here on nothing
// tells the two apart. On the way back the driver's state comes first, then what the library has moved, while
// the program is parked again, and the gate is opened last.

// prepareAgents finds the libraries, and has them get ready. The driver does the work where one cannot. What stays
// stopped can be no part of this.
func (s *Suspension) prepareAgents(ctx context.Context) error {
	if err := s.requireDriverAllowed(ctx); err != nil {
		return err
	}
	if len(stoppedBefore(s.Targets)) > 0 {
		return nil
	}
	if !s.serves() {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, s.Config.Lock.Try)
		defer cancel()
	}
	err := Parallel(s.Targets, func(t *Target) error {
		a, err := agent.Find(t.Process)
		if err == nil && a == nil {
			return nil
		}
		if err == nil {
			err = a.AtRest() // else its program has written there
		}
		if err == nil {
			err = a.RequireAllowed(ctx)
		}
		if err == nil {
			err = s.Session.SpanOf(t.PID, "prepare", func() error { return a.Do(ctx, agent.Prepare) })
		}
		if err == nil {
			t.agent = a
			t.canKeep = s.canKeep(ctx, t)
		} else if t.Member.Served {
			return fmt.Errorf("process %d (%s) shares device memory, which its library cannot take down now: %w", t.PID, t.Member.Name, err)
		} else if !errors.Is(err, agent.ErrNothing) {
			s.sayDriverMoves(t, err)
		}
		return nil
	})
	guests := s.withAgent()
	if err != nil || len(guests) == 0 {
		return err
	}
	for _, t := range guests {
		t.Member.Gated = true
	}
	return s.Session.Save()
}

// requireDriverAllowed refuses processes that a filter of their own would end while the driver checkpoints them. A filter
// that was put on every thread is on the driver's, too. One that cannot be read refuses nothing.
func (s *Suspension) requireDriverAllowed(ctx context.Context) error {
	calls := make([]inject.Call, len(drivers.Calls))
	for i, c := range drivers.Calls {
		calls[i] = inject.Call(c)
	}
	return Parallel(s.Targets, func(t *Target) error {
		if t.Member.Stopped {
			return nil
		}
		tid, err := t.CUDA.RestoreThreadID(ctx)
		if err == nil {
			err = inject.RequireAllowed(ctx, []int{tid}, calls...)
		}
		if !errors.Is(err, inject.ErrForbidden) {
			return nil // what is wrong otherwise, the lock finds
		}
		meaning := fmt.Sprintf("process %d (%s) has put a seccomp filter on all its threads that forbids what the driver calls for a checkpoint (%v)",
			t.PID, t.Member.Name, err)
		return fault.Because(err, meaning, "let the filter allow that system call (ausyscall NUMBER names it), or install it only on the threads that need it")
	})
}

func (s *Suspension) sayDriverMoves(t *Target, reason error) {
	s.Log.Info("the driver moves the memory of a process, which is slower", "pid", t.PID, "reason", reason)
}

func (s *Suspension) withAgent() []*Target {
	return slices.DeleteFunc(slices.Clone(s.Targets), func(t *Target) bool { return t.agent == nil })
}

// insistUntil returns until when processes are locked with their gates closed. After that the driver has to do the work: its
// lock lets calls that only ask or wait begin, and work of the GPUs may not end without them. Ranks need time to come level. What
// they share, the driver cannot restore.
func (s *Suspension) insistUntil(ctx context.Context) time.Time {
	deadline, limited := ctx.Deadline()
	switch {
	case s.serves():
		return deadline
	case limited && len(s.Targets) > 1:
		return time.Now().Add(time.Until(deadline) / 2)
	}
	return time.Time{}
}

// serves reports whether processes share memory that their libraries take down.
func (s *Suspension) serves() bool {
	return slices.ContainsFunc(s.Targets, func(t *Target) bool { return t.Member.Served })
}

// tryLock closes the gate and locks.
func (s *Suspension) tryLock(ctx context.Context, t *Target, try time.Duration) (bool, error) {
	if t.agent != nil {
		if err := t.agent.Do(ctx, agent.Close); err != nil {
			s.leaveToDriver(ctx, t, err)
		}
	}
	got, err := t.CUDA.TryLock(ctx, try)
	if err == nil && !got && t.agent != nil && !time.Now().Before(s.insist) {
		s.leaveToDriver(ctx, t, errInCall)
	}
	return got, err
}

var errInCall = errors.New("a call to the driver did not return")

// parallelCalls does something for all targets at once. It tells the processes of which a call did not return, for
// which there is a way out, from failures, which end the whole: inCall is nil or an [errInCall].
func parallelCalls(targets []*Target, do func(*Target) error) (inCall, err error) {
	calls := make([]error, len(targets))
	err = ParallelUpTo(len(targets), len(targets), func(i int) error {
		err := do(targets[i])
		if errors.Is(err, errInCall) {
			calls[i], err = err, nil
		}
		return err
	})
	return errors.Join(calls...), err
}

// leaveToDriver opens the gate of a process that runs. If the library does not answer, the way back opens it.
func (s *Suspension) leaveToDriver(ctx context.Context, t *Target, reason error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Config.Lock.Try)
	defer cancel()
	s.sayDriverMoves(t, reason)
	if t.agent.Do(ctx, agent.Finish) == nil {
		s.Session.Update(func() { t.Member.Gated = false })
	}
	t.agent = nil
}

func (t *Target) unlock(ctx context.Context) error {
	t.locked = false
	if err := t.CUDA.Unlock(ctx); err != nil || t.agent == nil {
		return err
	}
	return t.agent.Do(ctx, agent.Open) // else nobody catches up
}

// letThrough unlocks a process, and lets some calls begin.
func (t *Target) letThrough(ctx context.Context, calls uint32) error {
	if err := t.CUDA.Unlock(ctx); err != nil {
		return err
	}
	return t.agent.LetThrough(ctx, calls)
}

// letCallsEnd lets go of the lock of the processes whose gates are closed, until the calls that have waited for it
// have ended. If one does not end, because it was for work that other ranks have to join, all have to be locked again.
func (s *Suspension) letCallsEnd(ctx context.Context) (ended bool, err error) {
	guests := s.withAgent()
	if len(guests) == 0 {
		return true, nil
	}
	inCall, err := parallelCalls(guests, func(t *Target) error {
		t.locked = false
		if err := t.CUDA.Unlock(ctx); err != nil {
			return err
		}
		ended, err := t.CUDA.TryLock(ctx, s.Config.Lock.Try)
		if err == nil && !ended {
			return errInCall
		}
		if err != nil {
			return err
		}
		return t.CUDA.Unlock(ctx)
	})
	switch {
	case err != nil:
		return false, err
	case inCall != nil && time.Now().Before(s.insist):
		return false, nil
	case inCall != nil:
		return true, s.lockWithoutAgents(ctx, inCall)
	}
	return true, s.Session.Failpoint(ctx, string(s.Session.Kind)+".gated")
}

// lockWithoutAgents opens the gates again, and locks as without the libraries. The processes must run.
func (s *Suspension) lockWithoutAgents(ctx context.Context, reason error) error {
	err := Parallel(s.withAgent(), func(t *Target) (err error) {
		if t.locked {
			err = t.CUDA.Unlock(ctx)
		}
		s.leaveToDriver(ctx, t, reason)
		t.locked = false
		return err
	})
	if err != nil {
		return err
	}
	return s.lockAll(ctx)
}

// MoveMemory has the libraries move the memory of the processes, which are stopped, to the host. If one has to run for that,
// everything is continued, and stopped again by stopTree.
func (s *Suspension) MoveMemory(ctx context.Context, stopTree func(context.Context) error) error {
	guests := s.withAgent()
	if len(guests) == 0 {
		return s.requireRoom(ctx, nil)
	}
	if err := s.standStill(ctx, stopTree); err != nil {
		return err
	}
	if guests = s.withAgent(); len(guests) == 0 {
		return s.requireRoom(ctx, nil)
	}
	ctx, cancel := s.Config.Checkpoint.Within(ctx)
	defer cancel()
	if err := s.measure(ctx); err != nil {
		return err
	}
	if err := s.takeDownShared(ctx, guests); err != nil {
		return err
	}
	for _, t := range guests {
		t.Member.Moved = true
	}
	if err := s.Session.Save(); err != nil {
		return err
	}
	if err := s.requireRoom(ctx, guests); err != nil {
		return err
	}
	return Parallel(guests, func(t *Target) error {
		if err := t.noteBefore(); err != nil {
			return err
		}
		return s.whileUnlocked(ctx, t, func() error {
			if err := s.moveOut(ctx, t); err != nil {
				return err
			}
			return s.Session.Failpoint(ctx, string(s.Session.Kind)+".moved")
		})
	})
}

// ErrNoRoom says that there is too little room for what the GPUs hold, which was known only when the job stood still.
var ErrNoRoom = errors.New("too little room for what the GPUs hold")

// requireRoom has the libraries count what they would copy, if the inspection could not tell whether there is room for that. The
// processes' memory is as large as NVML says, but what is 0, or in an earlier image, takes no room.
// All of what the driver moves takes room, because nobody counts that.
func (s *Suspension) requireRoom(ctx context.Context, guests []*Target) error {
	if s.JudgeRoom == nil {
		return nil
	}
	err := Parallel(guests, func(t *Target) error {
		if !t.agent.Counts() {
			return nil // it would move the memory: all of it counts
		}
		return s.whileUnlocked(ctx, t, func() error {
			err := errors.Join(t.compare(), t.agent.SetCounting(true))
			if err != nil {
				return err
			}
			answer := s.Session.SpanOf(t.PID, "count", func() error { return t.obey(ctx, s.Session, agent.Out) })
			t.Member.Spared, err = t.agent.Spared(answer)
			if agent.Answered(err) { // it moves nothing, then
				err = nil
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	findings, err := s.JudgeRoom()
	if late := lateRefusal(findings.Force(slices.Concat(s.Force, s.Config.Force)), err); late != nil {
		return fmt.Errorf("%w: %w", ErrNoRoom, late)
	}
	return nil
}

// whileUnlocked does something while a process that is stopped is not locked, and the threads of the driver and of the
// library run. After an error it stays unlocked.
func (s *Suspension) whileUnlocked(ctx context.Context, t *Target, do func() error) error {
	return t.withHelpers(ctx, func() error {
		call, cancel := context.WithTimeout(ctx, s.Config.Lock.Timeout) // it waits for nothing, and the job is stopped
		defer cancel()
		if err := t.CUDA.Unlock(call); err != nil {
			return err
		}
		t.locked = false
		if err := do(); err != nil {
			return err
		}
		got, err := t.CUDA.TryLock(ctx, s.Config.Lock.Try)
		if err == nil && !got {
			err = fmt.Errorf("process %d (%s) could not be locked again", t.PID, t.Member.Name)
		}
		t.locked = got
		return err
	})
}

// moveOut has the library move the memory. If it says that it has not, the driver does it.
func (s *Suspension) moveOut(ctx context.Context, t *Target) error {
	out := agent.Out
	if t.canKeep {
		out = agent.OutKept
	}
	err := errors.Join(t.compare(), t.agent.SetCounting(false))
	if err != nil {
		return err
	}
	err = s.Session.SpanOf(t.PID, "move out", func() error { return t.obey(ctx, s.Session, out) })
	if err == nil {
		err = t.noteOut()
	}
	if err == nil && t.canKeep {
		err = s.keep(ctx, t)
	}
	if !agent.Answered(err) {
		return err
	}
	status, statusErr := t.agent.Status()
	if statusErr != nil || status.State != agent.Prepared {
		return errors.Join(err, statusErr)
	}
	s.sayDriverMoves(t, err)
	s.Session.Update(func() { t.Member.Moved = status.Down })
	return nil
}

// obey has the library in a process do something while the program's threads are parked.
func (t *Target) obey(ctx context.Context, s *session.Session, c agent.Command) error {
	return stepOutFor(ctx, s, t, t.agent.Helpers, func() error { return t.agent.Do(ctx, c) })
}

// standStill parks the program's threads, none of which is in a call to the driver then. One that had passed the gate before it was
// closed may have begun a call since its process was unlocked: that ends while the job runs, and the gate holds its next one. If
// calls begin again and again, the driver has to do the work, which cannot restore what processes share.
func (s *Suspension) standStill(ctx context.Context, stopTree func(context.Context) error) error {
	const tries = 3
	for try := 1; ; try++ {
		inCall, err := s.prove(ctx, s.withAgent())
		switch {
		case err != nil || inCall == nil:
			return err
		case try < tries && !errors.Is(inCall, inject.ErrFiltered):
			s.Log.Debug("a call to the driver began in a process that was about to stop: all run until it has ended", "reason", inCall)
			err = s.runFor(ctx, s.lockUntilCallsEnd, stopTree)
		case s.serves():
			return inCall
		default:
			return s.runFor(ctx, func(ctx context.Context) error { return s.lockWithoutAgents(ctx, inCall) }, stopTree)
		}
		if err != nil || len(s.withAgent()) == 0 {
			return err
		}
	}
}

// prove parks the program's threads, and locks the processes: no thread is in a call then. The job is stopped
// meanwhile, so a lock may not take longer than while it runs.
func (s *Suspension) prove(ctx context.Context, guests []*Target) (inCall, err error) {
	ctx, cancel := s.Config.Checkpoint.Within(ctx)
	defer cancel()
	return parallelCalls(guests, func(t *Target) error {
		helpers, err := t.helpers(ctx)
		if err != nil {
			return err
		}
		if err := hold(ctx, s.Session, t, helpers...); errors.Is(err, inject.ErrFiltered) {
			return fmt.Errorf("%w: %w", errInCall, err) // only the stop would hold the program
		} else if err != nil {
			return err
		}
		return t.withHelpers(ctx, func() error {
			call, cancel := context.WithTimeout(ctx, s.Config.Lock.Try+lockGrace)
			defer cancel()
			got, err := t.CUDA.TryLock(call, s.Config.Lock.Try)
			if err == nil && !got {
				err = fmt.Errorf("process %d (%s): %w", t.PID, t.Member.Name, errInCall)
			}
			t.locked = got
			return err
		})
	})
}

// runFor continues the tree, which is stopped, locks the processes in the way of lock, and stops the tree again. Work of the GPUs
// may wait for a process without CUDA, so all run. The others are looked at anew when they are stopped again: one may use CUDA by
// then.
func (s *Suspension) runFor(ctx context.Context, lock, stopTree func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.PatienceForAll())
	defer cancel()
	for _, t := range s.withAgent() {
		if err := returnThreads(ctx, t.PID, s.Session.ParkedFile(t.PID)); err != nil {
			return err
		}
		t.Parked = nil
	}
	if err := proc.SignalAll(unix.SIGCONT, append(ProcessesOf(s.Targets), s.Others...)...); err != nil {
		return err
	}
	for _, other := range s.Others {
		other.Close()
	}
	s.Others = nil
	if err := s.Session.Failpoint(ctx, string(s.Session.Kind)+".continued"); err != nil {
		return err
	}
	if err := lock(ctx); err != nil {
		return err
	}
	if err := s.measure(ctx); err != nil {
		return err
	}
	if err := s.Session.Failpoint(ctx, string(s.Session.Kind)+".relocked"); err != nil {
		return err
	}
	return stopTree(ctx)
}

// helpers returns the threads that run while the program's are parked.
func (t *Target) helpers(ctx context.Context) ([]int, error) {
	tids, err := t.agent.Helpers()
	if err != nil {
		return nil, err
	}
	tid, err := t.CUDA.RestoreThreadID(ctx)
	if err == nil && !slices.Contains(tids, tid) {
		tids = append(tids, tid)
	}
	return tids, err
}

// withHelpers does something while, of a stopped process, the threads of the driver and of the library run.
func (t *Target) withHelpers(ctx context.Context, do func() error) error {
	const tries, pause = 10, 10 * time.Millisecond // a thread of the library that was told to end may be about to
	for try := 1; ; try++ {
		tids, err := t.helpers(ctx)
		if err != nil {
			return err
		}
		tracer := inject.NewTracer()
		err = tracer.Run(tids...)
		begun := err == nil
		if begun {
			err = do()
		}
		patience := ReleaseTimeout
		if err != nil { // a call that hangs in the kernel may keep a thread from stopping
			patience = lockGrace
		}
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		err = errors.Join(err, ReleaseThreads(releasing, tracer, []*Target{t}))
		cancel()
		if begun || try == tries {
			return err
		}
		time.Sleep(pause)
	}
}

// noteBefore notes what is mapped before the memory of the GPUs comes. What it finds first counts.
func (t *Target) noteBefore() (err error) {
	if t.Before.Mapped != nil {
		return nil
	}
	if t.Before, err = proc.ReadAddressSpace(t.PID); err == nil {
		t.Member.PrivateBefore = proc.Total(t.Before.Private)
	}
	return err
}

// findAgent finds the library of a process on the way back. One that may hold its process back must be there. Another one
// was told at most to get ready: if it says that it has done more, the program has written that.
func (t *Target) findAgent() (status agent.Status, err error) {
	a, err := agent.Find(t.Process)
	if err == nil && a != nil {
		status, err = a.Status()
	}
	if !t.Member.Gated && (err != nil || a == nil || status.Busy || a.AtRest() != nil) {
		t.agent = nil
		return agent.Status{}, nil
	}
	t.agent = a
	if a == nil {
		const lost = "process %d (%s): the library that holds its calls to the driver back is not found in it"
		return status, errors.Join(fmt.Errorf(lost, t.PID, t.Member.Name), err)
	}
	return status, err
}

// nothingMoved reports whether all memory is still on the GPUs: the libraries say so at their step, before which the
// driver has checkpointed nothing. The job then need not stop, nor wait for the driver to answer.
func (b *wayBack) nothingMoved() bool {
	if b.Step != journal.StepMove {
		return false
	}
	return !slices.ContainsFunc(b.cuda, func(t *Target) bool {
		status, err := t.findAgent()
		return err != nil || status.Busy || status.Down || status.State == agent.Emptied
	})
}

// moveBack has the libraries bring back what they have moved. The processes are stopped, and their driver's state is
// there.
func (b *wayBack) moveBack(ctx context.Context) error {
	err := b.parallel(func(t *Target) error {
		status, err := t.findAgent()
		if err == nil && b.Kind == journal.KindRestore && t.Member.Gated && status.State == agent.Idle {
			err = fmt.Errorf("process %d (%s): the library in it does not know where its GPU memory is", t.PID, t.Member.Name)
		}
		if err != nil || status.State != agent.Emptied && !status.Busy {
			return err
		}
		return b.withLibrary(ctx, t, func() error {
			err := b.within(ctx, func(ctx context.Context) error { return b.Failpoint(ctx, string(b.Kind)+".back.moving") })
			if err == nil {
				err = b.moveIn(ctx, t)
			}
			if failed := new(agent.ResultError); errors.As(err, &failed) && failed.Result == int32(cudackpt.ResultOutOfMemory) {
				return fmt.Errorf("process %d (%s): the GPUs have no room for its memory any more: %w", t.PID, t.Member.Name, err)
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	return b.shareAgain(ctx)
}

// withLibrary does something while, of a process that is stopped and unlocked, the threads of the driver and of the library run.
func (b *wayBack) withLibrary(ctx context.Context, t *Target, do func() error) error {
	err := b.within(ctx, func(ctx context.Context) error {
		helpers, err := t.helpers(ctx)
		if err == nil {
			err = hold(ctx, b.Session, t, helpers...)
		}
		return err
	})
	if err != nil && !errors.Is(err, inject.ErrFiltered) && !diskFull(err) { // then its stop alone holds it
		return err
	}
	return t.withHelpers(ctx, func() error {
		err := b.within(ctx, func(ctx context.Context) error {
			return b.unanswered(ctx, t, staysStopped, b.unlockTarget(ctx, t))
		})
		if err != nil {
			return err
		}
		return do()
	})
}

// holdAgain parks all threads of what moveBack has brought back, for a restore that waits for a decision.
func (b *wayBack) holdAgain(ctx context.Context) error {
	if b.Kind != journal.KindRestore || !b.Hold.Undecided() {
		return nil
	}
	return b.parallel(func(t *Target) error {
		if t.agent == nil {
			return nil
		}
		tid, err := t.CUDA.RestoreThreadID(ctx)
		if err != nil {
			return err
		}
		return hold(ctx, b.Session, t, tid)
	})
}

// openGates lets the programs' calls begin again. The processes run already, so one that ends is its own affair.
func (b *wayBack) openGates(ctx context.Context) error {
	return b.parallel(func(t *Target) error { return b.openGate(ctx, t) })
}

func (b *wayBack) openGate(ctx context.Context, t *Target) error {
	status, err := t.findAgent()
	if err == nil && t.agent != nil && (status.Closed || status.Busy || status.State != agent.Idle) {
		err = t.agent.Do(ctx, agent.Finish)
	}
	if err != nil && t.Exiting() {
		return nil
	}
	return err
}
