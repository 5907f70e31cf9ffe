package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/job"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
	"cucriu/internal/proc"
)

// watch takes care of the job until it has ended, or is to leave this host.
func (s *supervisor) watch(ctx context.Context, signals *job.Signals) (int, error) {
	ended := make(chan struct{})
	if s.root == nil {
		close(ended)
	} else {
		go func() {
			defer close(ended)
			_ = s.root.WaitExit(ctx)
		}()
	}
	busy, cutOff := context.WithCancelCause(ctx) // of what is done beside this loop
	defer cutOff(nil)
	due := time.NewTimer(0)
	s.schedule(due, nil)
	look := time.NewTimer(lookAfter)
	defer look.Stop()
	owned := time.NewTicker(sandbox.FencePeriod)
	defer owned.Stop()
	stuck := 0                                                 // how often the root process was seen ending while something was under way
	gone := false                                              // the job has ended
	toStop := false                                            // by Ctrl-Z, once nothing is under way
	made := s.begun(func() work { s.tidyUp(); return work{} }) // something is under way
	for {
		isDue, isToLook, requests := due.C, look.C, s.control.requests
		if made != nil {
			isDue, isToLook, requests = nil, nil, nil // one after the other
		}
		if s.paused.Load() {
			isDue, isToLook = nil, nil
		}
		select {
		case <-isToLook:
			made = s.begun(func() work { s.look(busy); return work{} })
		case <-owned.C:
			if err := s.store.Fenced(); made == nil && errors.Is(err, store.ErrFenced) {
				return s.fenced(err)
			}
			if made == nil || s.root == nil || !s.root.Exiting() || s.ending.Load() {
				stuck = 0
			} else if stuck++; stuck == stuckLooks { // killed while criu traces it, it does not end
				s.say("the job was killed while criu was at work on it, and criu waits for it: both are ended")
				_ = s.sandbox.Kill()
			}
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-ended:
			if ctx.Err() != nil {
				return 0, context.Cause(ctx)
			}
			if made == nil {
				return s.jobEnded(signals)
			}
			ended, gone = nil, true
			if !s.ending.Load() {
				// criu waits for ever for a process that is gone, and the rest of the job has no
				// use any more. What is on its way to the store gets there.
				_, _ = s.awaitExit()
				_ = s.sandbox.Kill()
			}
		case <-isDue:
			made = s.begun(func() work {
				return work{err: s.scheduled(busy), reschedule: true}
			})
		case a := <-requests:
			made = s.begun(func() work { return s.serve(busy, a) })
		case w := <-made:
			made = nil
			if w.left {
				return s.leave()
			}
			if gone {
				return s.jobEnded(signals)
			}
			if toStop {
				toStop = false
				s.pass(unix.SIGTSTP)
			}
			if w.reschedule {
				s.schedule(due, w.err)
			} else {
				s.noteRunning(s.board.now.Next)
			}
		case got := <-signals.Got():
			sig := got.(unix.Signal)
			if slices.Contains(s.Preempt, sig) {
				return s.preempt(ctx, sig, signals, made, cutOff)
			}
			if toStop = sig == unix.SIGTSTP && made != nil; !toStop { // the job may be held
				s.pass(sig)
			}
		}
	}
}

// stuckLooks is how often the root process of a job must be seen ending, one look after the
// other, until criu is taken to wait for it.
const stuckLooks = 3

// begun does something beside the loop.
func (s *supervisor) begun(do func() work) chan work {
	made := make(chan work, 1)
	go func() { made <- do() }()
	return made
}

// schedule sets the time of the next checkpoint, after one that was made or was not.
func (s *supervisor) schedule(due *time.Timer, err error) {
	due.Stop()
	if s.Every <= 0 {
		s.noteRunning(time.Time{})
		return
	}
	wait := s.untilNext(err)
	due.Reset(wait)
	s.noteRunning(time.Now().Add(wait).UTC())
}

// pass passes a signal on to the job: to the whole process group what a terminal sends there. The
// end of our terminal is none of the job's business, nor that it stops us.
func (s *supervisor) pass(sig unix.Signal) {
	if sig == unix.SIGCONT {
		s.console.enter()
	}
	switch {
	case sig == unix.SIGTSTP:
		s.console.leave()
		job.StopSelf()
		s.console.enter()
	case sig == unix.SIGWINCH && s.console != nil:
		s.console.resize()
	case s.root == nil || sig == unix.SIGHUP:
	case s.paused.Load() && sig == unix.SIGCONT:
	case job.IsForGroup(sig) && s.leadsGroup():
		_ = unix.Kill(-s.root.PID, sig) // it may have ended
	case job.IsForGroup(sig), job.IsForFirst(sig):
		_ = s.root.Signal(sig)
	}
}

// exitPatience is how long init may take to write down how the job has ended.
const exitPatience = 5 * time.Second

// togetherPatience is how far apart two processes may get a signal that is sent to both.
const togetherPatience = time.Second

// jobEnded tells how the job has ended by itself.
func (s *supervisor) jobEnded(signals *job.Signals) (int, error) {
	exit, err := s.awaitExit()
	if err != nil {
		return 0, err
	}
	if err := s.store.Fenced(); errors.Is(err, store.ErrFenced) {
		return s.fenced(err)
	}
	status := exit.Code()
	if (status == 0 || s.endedLike(exit)) && s.isPreempted(signals) {
		if err := s.sandbox.SetLeaving(); err != nil {
			s.say(fmt.Sprintf("the sandbox's record cannot be written: %v", err))
		}
		s.tell(Event{Event: EventPreempted, Message: fmt.Sprintf("%s ended when it was told to leave this host, and is not taken for finished", s.record.Name)})
		return s.leave()
	}
	message := fmt.Sprintf("%s has ended with exit status %d", s.record.Name, status)
	if exit.Unknown {
		message = s.record.Name + " has ended, and this kernel has told only its parent how: if it has finished, remove this directory"
	}
	if exit.Status.Signaled() {
		message = fmt.Sprintf("%s was killed by %v", s.record.Name, unix.SignalName(exit.Status.Signal()))
	}
	if status == 0 {
		if err := s.finish(exit); err != nil {
			return 0, err
		}
	} else if all, err := s.store.Checkpoints(); err == nil && len(all) > 0 {
		message += fmt.Sprintf("; the same command goes on from checkpoint %s", all[len(all)-1].Name)
	}
	s.tell(Event{Event: EventEnded, Status: status, Message: message})
	return status, s.endSandbox()
}

// endedLike reports whether the job has ended as programs do at a signal after which the job is to
// leave.
func (s *supervisor) endedLike(exit sandbox.Exit) bool {
	return slices.ContainsFunc(s.Preempt, func(sig unix.Signal) bool { return exit.Code() == 128+int(sig) })
}

// isPreempted reports whether a signal comes that says that the job must leave. A scheduler may
// send it to all processes, and the job may have ended because of it.
func (s *supervisor) isPreempted(signals *job.Signals) bool {
	patience := time.After(togetherPatience)
	for {
		select {
		case got := <-signals.Got():
			if slices.Contains(s.Preempt, got.(unix.Signal)) {
				return true
			}
		case <-patience:
			return false
		}
	}
}

// finish records that the job has come to its end.
func (s *supervisor) finish(exit sandbox.Exit) error {
	s.record.Finished = &finished{Status: exit.Code(), At: exit.At}
	if err := s.record.write(s.Dir); err != nil {
		return fmt.Errorf("%s has finished, but that cannot be written down: %w", s.record.Name, err)
	}
	s.board.is(StateFinished)
	return nil
}

// fenced ends the job: it belongs to somebody else now, who may have resumed it elsewhere.
func (s *supervisor) fenced(cause error) (int, error) {
	err := s.endSandbox()
	return 0, errors.Join(fmt.Errorf("%s was ended here: %w", s.record.Name, cause), err)
}

// awaitExit waits until it is known how the job's root process has ended.
func (s *supervisor) awaitExit() (sandbox.Exit, error) {
	deadline := time.Now().Add(exitPatience)
	for {
		alive := s.sandbox.Alive()
		exit, err := s.sandbox.Exit()
		switch {
		case err != nil:
			return sandbox.Exit{}, err
		case exit != nil:
			return *exit, nil
		case !alive:
			return sandbox.Exit{Status: unix.WaitStatus(unix.SIGKILL), At: time.Now()}, nil
		case time.Now().After(deadline):
			return sandbox.Exit{}, fmt.Errorf("the job has ended, and its init does not tell how: %w", proc.ErrGone)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
