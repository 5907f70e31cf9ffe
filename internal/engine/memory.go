package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/agent"
	"cucriu/internal/inject"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
	"cucriu/internal/session"
)

// The driver copies the memory of a GPU to the host with one thread. The library in the job (internal/guest)
// uses many, and the driver has little left to copy. For that it calls the driver, so the process is not
// locked meanwhile:
//
//	prepare   the library starts its threads
//	close     from now on the program's calls to the driver wait at the library's gate
//	lock      as without the library; it is let go again, so that calls which waited for it end
//	stop      every thread
//	proof     the driver can lock the process while the program's threads are stopped, so none of
//	          them is in a call. If it cannot, everything is continued, and the driver has to do the work
//	out       with the driver's threads and the library's alone; then the process is locked for good
//
// The copies are in new private memory of the process, as those of the driver, and from here on nothing
// tells the two apart. On the way back the driver's state comes first, then what the library has moved, and
// the gate is opened last.

// prepareAgents finds the libraries, and has them get ready. The driver does the work where one cannot.
func (s *Suspension) prepareAgents(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.Config.Lock.Try)
	defer cancel()
	_ = Parallel(s.Targets, func(t *Target) error {
		if t.Member.Stopped {
			return nil
		}
		a, err := agent.Find(t.Process)
		if err != nil || a == nil {
			return nil // whoever needs the process says so
		}
		err = s.Session.SpanOf(t.PID, "prepare", func() error { return a.Do(ctx, agent.Prepare) })
		if errors.Is(err, agent.ErrNothing) {
			return nil
		}
		if err != nil {
			s.Log.Info("the driver moves the memory of a process, which is slower", "pid", t.PID, "reason", err)
			return nil
		}
		t.agent = a
		return nil
	})
}

func (s *Suspension) withAgent() []*Target {
	return slices.DeleteFunc(slices.Clone(s.Targets), func(t *Target) bool { return t.agent == nil })
}

// tryLock closes the gate and locks. Without an answer the driver has to do the work; if the gate closes later, the way
// back opens it.
func (t *Target) tryLock(ctx context.Context, try time.Duration) (bool, error) {
	if t.agent != nil && t.agent.Do(ctx, agent.Close) != nil {
		t.agent = nil
	}
	return t.CUDA.TryLock(ctx, try)
}

func (t *Target) unlock(ctx context.Context) error {
	t.locked = false
	if err := t.CUDA.Unlock(ctx); err != nil || t.agent == nil {
		return err
	}
	return t.agent.Do(ctx, agent.Open) // else nobody catches up
}

// letCallsEnd lets go of the lock of the processes whose gates are closed, until the calls that have waited for it
// have ended. If they do not end, everything is locked without the libraries.
func (s *Suspension) letCallsEnd(ctx context.Context) error {
	guests := s.withAgent()
	if len(guests) == 0 {
		return nil
	}
	err := Parallel(guests, func(t *Target) error {
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
	if errors.Is(err, errInCall) {
		return s.lockWithoutAgents(ctx, err)
	}
	if err != nil {
		return err
	}
	return s.Session.Failpoint(ctx, string(s.Session.Kind)+".gated")
}

var errInCall = errors.New("a call to the driver did not end")

// lockWithoutAgents opens the gates again, and locks as without the libraries. The processes must run.
func (s *Suspension) lockWithoutAgents(ctx context.Context, reason error) error {
	s.Log.Info("the driver moves the memory of the job, which is slower", "reason", reason)
	err := Parallel(s.withAgent(), func(t *Target) error {
		state, err := t.CUDA.State(ctx)
		if err == nil && state == cudackpt.StateLocked {
			err = t.CUDA.Unlock(ctx)
		}
		if err != nil {
			return err
		}
		return t.agent.Do(ctx, agent.Finish)
	})
	if err != nil {
		return err
	}
	for _, t := range s.withAgent() {
		t.agent, t.locked = nil, false
	}
	return s.lockAll(ctx)
}

// MoveMemory has the libraries move the memory of the processes, which are stopped, to the host.
func (s *Suspension) MoveMemory(ctx context.Context) error {
	guests := s.withAgent()
	if len(guests) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.Config.Checkpoint.Timeout)
	defer cancel()
	err := s.prove(ctx, guests)
	if errors.Is(err, errInCall) {
		return s.doWithoutAgents(ctx, err)
	}
	if err != nil {
		return err
	}
	if err := s.measure(ctx); err != nil {
		return err
	}
	for _, t := range guests {
		t.Member.Moved = true
	}
	if err := s.Session.Save(); err != nil {
		return err
	}
	return Parallel(guests, func(t *Target) error {
		if err := t.noteBefore(); err != nil {
			return err
		}
		return t.withHelpers(ctx, t.agent, func() error {
			if err := t.CUDA.Unlock(ctx); err != nil {
				return err
			}
			err := s.Session.SpanOf(t.PID, "move out", func() error { return t.agent.DoHelped(ctx, agent.Out, t.nudge) })
			if state, _, stateErr := t.agent.State(); err != nil && (stateErr != nil || state != agent.Prepared) {
				return err
			} else if err != nil { // nothing was changed
				s.Log.Info("the driver moves the memory of a process, which is slower", "pid", t.PID, "reason", err)
				s.Session.Update(func() { t.Member.Moved = false })
			}
			if err := s.Session.Failpoint(ctx, string(s.Session.Kind)+".moved"); err != nil {
				return err
			}
			got, err := t.CUDA.TryLock(ctx, s.Config.Lock.Try)
			if err == nil && !got {
				err = fmt.Errorf("process %d (%s) could not be locked again", t.PID, t.Member.Name)
			}
			t.locked = got
			return err
		})
	})
}

// prove locks the processes while the threads of their programs are stopped.
func (s *Suspension) prove(ctx context.Context, guests []*Target) error {
	return Parallel(guests, func(t *Target) error {
		return t.withHelpers(ctx, t.agent, func() error {
			got, err := t.CUDA.TryLock(ctx, s.Config.Lock.Try)
			if err == nil && !got {
				err = errInCall
			}
			t.locked = got
			return err
		})
	})
}

// doWithoutAgents continues the processes, locks them as without the libraries, and stops them again.
func (s *Suspension) doWithoutAgents(ctx context.Context, reason error) error {
	if err := session.SignalProcesses(unix.SIGCONT, ProcessesOf(s.Targets)...); err != nil {
		return err
	}
	if err := s.lockWithoutAgents(ctx, reason); err != nil {
		return err
	}
	if err := s.measure(ctx); err != nil {
		return err
	}
	return s.Stop(ctx)
}

// withHelpers does something while, of a stopped process, the threads of the driver and of the library run.
func (t *Target) withHelpers(ctx context.Context, a *agent.Agent, do func() error) error {
	tids, err := a.Helpers()
	if err != nil {
		return err
	}
	tid, err := t.CUDA.RestoreThreadID(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(tids, tid) {
		tids = append(tids, tid)
	}
	tracer := inject.NewTracer()
	err = tracer.Run(tids...)
	if err == nil {
		err = do()
	}
	return errors.Join(err, ReleaseThreads(context.WithoutCancel(ctx), tracer, []*Target{t}))
}

// nudge lets the threads of a stopped process run for a moment. One of them may have a lock that the library or the
// driver waits for; none gets through the gate.
func (t *Target) nudge() error {
	const moment = 5 * time.Millisecond
	if err := t.Signal(unix.SIGCONT); err != nil {
		return err
	}
	time.Sleep(moment)
	return t.Signal(unix.SIGSTOP)
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

// moveBack has the libraries bring back what they have moved. The processes are stopped, and their driver's state is
// there. If a restore waits for a decision, they are parked again.
func (b *wayBack) moveBack(ctx context.Context) error {
	return b.parallel(func(t *Target) error {
		a, err := agent.Find(t.Process)
		if err == nil && a == nil && t.Member.Moved {
			err = fmt.Errorf("process %d (%s): the library that has moved its GPU memory is not found in it", t.PID, t.Member.Name)
		}
		if err != nil || a == nil {
			return err
		}
		state, closed, err := a.State()
		if err == nil && b.Kind == journal.KindRestore && t.Member.Moved && state == agent.Idle {
			err = fmt.Errorf("process %d (%s): the library in it does not know where its GPU memory is", t.PID, t.Member.Name)
		}
		if err != nil || state == agent.Idle && !closed {
			return err
		}
		if err := returnThreads(ctx, t.PID, b.ParkedFile(t.PID)); err != nil {
			return err
		}
		return t.withHelpers(ctx, a, func() error {
			state, err := t.CUDA.State(ctx)
			if err == nil && state == cudackpt.StateLocked {
				err = t.CUDA.Unlock(ctx)
			}
			if err != nil {
				return err
			}
			if err := b.Failpoint(ctx, string(b.Kind)+".back.moving"); err != nil {
				return err
			}
			err = b.SpanOf(t.PID, "move in", func() error { return a.DoHelped(ctx, agent.In, t.nudge) })
			if failed := new(agent.ResultError); errors.As(err, &failed) && failed.Result == int32(cudackpt.ResultOutOfMemory) {
				return fmt.Errorf("process %d (%s): the GPUs have no room for its memory any more: %w", t.PID, t.Member.Name, err)
			}
			return err
		})
	})
}

// openGates lets the programs' calls begin again.
func (b *wayBack) openGates(ctx context.Context) error {
	return b.parallel(func(t *Target) error {
		a, err := agent.Find(t.Process)
		if err != nil || a == nil {
			return err
		}
		if state, closed, err := a.State(); err != nil || state == agent.Idle && !closed {
			return err
		}
		return a.Do(ctx, agent.Finish)
	})
}

// holdAgain parks what moveBack has unparked, for a restore that waits for a decision.
func (b *wayBack) holdAgain(ctx context.Context) error {
	if b.Kind != journal.KindRestore || !b.Hold.Undecided() {
		return nil
	}
	return b.parkUnparked(ctx)
}
