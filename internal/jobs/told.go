package jobs

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/job"
	"cucriu/internal/jobs/sandbox"
)

// toldError says that a signal came.
type toldError struct{ sig unix.Signal }

func (e *toldError) Error() string { return "got " + unix.SignalName(e.sig) }

// beginListening begins, and listens to signals meanwhile. Once one says that the job is to leave,
// a job that is not here yet does not come: its checkpoints stay as they are. A job that is here
// is taken under care first; it leaves then, as at any preemption.
//
// It returns nil, and the signals are still to be looked at, if the job is here. It returns the
// signal if the job is not, because of it.
func (s *supervisor) beginListening(ctx context.Context, signals *job.Signals) (*toldError, error) {
	late, hurry := context.WithCancelCause(ctx) // ends what is not given up easily
	defer hurry(nil)
	told, tell := context.WithCancelCause(late)
	defer tell(nil)
	begun := make(chan error, 1)
	go func() { begun <- s.begin(late, told) }()
	var first *toldError
	var others []unix.Signal
	var graceOver <-chan time.Time
	for {
		select {
		case got := <-signals.Got():
			sig := got.(unix.Signal)
			switch {
			case !s.endsBegin(sig):
				others = append(others, sig)
			case first == nil:
				first = &toldError{sig}
				if slices.Contains(s.Preempt, sig) {
					s.told = time.Now()
					if s.Grace > 0 {
						graceOver = time.After(s.Grace)
					}
				}
				s.say(fmt.Sprintf("%v while %s is being started or resumed", first, s.record.Name))
				tell(first)
			default:
				others = append(others, sig)
				hurry(fmt.Errorf("got a second signal: %w", first))
			}
		case <-graceOver:
			hurry(fmt.Errorf("the %v of --grace are over: %w", s.Grace, first))
		case err := <-begun:
			if err != nil && first != nil && ctx.Err() == nil {
				s.hook.Log.Info("The job is given up before it was here", "signal", unix.SignalName(first.sig), "error", err)
				s.tell(Event{Event: EventPreempted, Message: fmt.Sprintf("%v before %s was here: it leaves this host as it came", first, s.record.Name)})
				return first, nil
			}
			if first != nil {
				signals.PutBack(first.sig)
			}
			signals.PutBack(others...)
			return nil, err
		}
	}
}

// endsBegin reports whether a job that is not here yet is not to come after a signal.
func (s *supervisor) endsBegin(sig unix.Signal) bool {
	return slices.Contains(append(s.Preempt, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM), sig)
}

// leaveAtOnce ends a supervisor that was told so before the job was here. A job whose state is not
// known may be half there.
func (s *supervisor) leaveAtOnce(told *toldError) (int, error) {
	if s.sandbox != nil {
		if err := s.endSandbox(); err != nil {
			return 0, err
		}
	}
	status := 128 + int(told.sig)
	if slices.Contains(s.Preempt, told.sig) {
		status = s.RequeueStatus
	}
	return status, s.sayNext()
}

// giveUpPatience is how long a dump or restore may take to give up once its time is over.
const giveUpPatience = 2 * time.Second

// killPatiently ends a sandbox if what is under way in it has not been given up some time after
// ctx ends. The caller calls over when it has.
func killPatiently(ctx context.Context, p *sandbox.Sandbox) (over func()) {
	done := make(chan struct{})
	go func() {
		select {
		case <-done:
			return
		case <-ctx.Done():
		}
		select {
		case <-done:
		case <-time.After(giveUpPatience): // criu hangs
			_ = p.Kill()
		}
	}()
	return func() { close(done) }
}
