package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
	"cucriu/hooks/jobs/job"
	"cucriu/hooks/jobs/place"
	"cucriu/hooks/jobs/store"
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
	due := time.NewTimer(s.untilNext(nil))
	if s.Every <= 0 {
		due.Stop()
	}
	look := time.NewTicker(fenceEvery)
	defer look.Stop()
	stuck := 0          // how often the root process was seen ending during a checkpoint
	var made chan error // a checkpoint is under way
	for {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-ended:
			if ctx.Err() != nil {
				return 0, context.Cause(ctx)
			}
			if made != nil {
				// criu waits for ever for a process that is gone, and the rest of the job has no
				// use any more. What is on its way to the store gets there.
				_, _ = s.awaitExit()
				_ = s.place.Kill()
				<-made // its own message says how it went
			}
			return s.jobEnded()
		case <-look.C:
			if err := s.store.Fenced(); made == nil && errors.Is(err, store.ErrFenced) {
				return s.fenced(err)
			}
			if made == nil || s.root == nil || !s.root.Exiting() {
				stuck = 0
			} else if stuck++; stuck == stuckLooks { // killed while criu traces it, it does not end
				s.say("the job was killed while criu was at work on it, and criu waits for it: both are ended")
				_ = s.place.Kill()
			}
		case <-due.C:
			made = make(chan error, 1)
			go func() { made <- s.checkpoint(ctx, "schedule") }()
		case err := <-made:
			made = nil
			if err := s.store.Fenced(); errors.Is(err, store.ErrFenced) {
				return s.fenced(err)
			}
			due.Reset(s.untilNext(err))
		case got := <-signals.Got():
			sig := got.(unix.Signal)
			if slices.Contains(s.Preempt, sig) {
				return s.preempt(ctx, sig, signals, made)
			}
			s.pass(sig)
		}
	}
}

// fenceEvery is how often to look whether the job belongs to somebody else now.
const fenceEvery = 5 * time.Second

// stuckLooks is how often the root process of a job must be seen ending, one look after the
// other, until criu is taken to wait for it.
const stuckLooks = 3

// retryFirst is how soon a checkpoint is tried again that could not be made.
const retryFirst = 5 * time.Second

// untilNext is how long to wait for the next checkpoint, after one that was made or was not. One
// that failed is tried again soon, and then less and less often.
func (s *supervisor) untilNext(err error) time.Duration {
	if err == nil {
		s.failed = 0
		return s.Every
	}
	s.failed++
	return min(s.Every, retryFirst<<min(s.failed-1, 10))
}

// pass passes a signal on to the job: to the whole process group what a terminal sends there. The
// end of our terminal is none of the job's business.
func (s *supervisor) pass(sig unix.Signal) {
	switch {
	case s.root == nil || sig == unix.SIGHUP:
	case job.IsForGroup(sig):
		_ = unix.Kill(-s.root.PID, sig) // it may have ended
	case job.IsForFirst(sig):
		_ = s.root.Signal(sig)
	}
}

// exitPatience is how long init may take to write down how the job has ended.
const exitPatience = 5 * time.Second

// jobEnded tells how the job has ended by itself.
func (s *supervisor) jobEnded() (int, error) {
	exit, err := s.awaitExit()
	if err != nil {
		return 0, err
	}
	status := exit.Code()
	message := fmt.Sprintf("%s has ended with exit status %d", s.record.Name, status)
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
	return status, s.endPlace()
}

// finish records that the job has come to its end.
func (s *supervisor) finish(exit place.Exit) error {
	s.record.Finished = &finished{Status: exit.Code(), At: exit.At}
	if err := s.record.write(s.Dir); err != nil {
		return fmt.Errorf("%s has finished, but that cannot be written down: %w", s.record.Name, err)
	}
	return nil
}

// fenced ends the job: it belongs to somebody else now, who may have resumed it elsewhere.
func (s *supervisor) fenced(cause error) (int, error) {
	err := s.endPlace()
	return 0, errors.Join(fmt.Errorf("%s was ended here: %w", s.record.Name, cause), err)
}

// awaitExit waits until it is known how the job's root process has ended.
func (s *supervisor) awaitExit() (place.Exit, error) {
	deadline := time.Now().Add(exitPatience)
	for {
		alive := s.place.Alive()
		exit, err := s.place.Exit()
		switch {
		case err != nil:
			return place.Exit{}, err
		case exit != nil:
			return *exit, nil
		case !alive:
			return place.Exit{Status: unix.WaitStatus(unix.SIGKILL), At: time.Now()}, nil
		case time.Now().After(deadline):
			return place.Exit{}, fmt.Errorf("the job has ended, and its init does not tell how: %w", proc.ErrGone)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
