package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/job"
)

// preempt makes a last checkpoint, if it can be done in time, and ends the job. A second signal
// ends it at once. made is what is under way beside, nil if nothing is, and cutOff ends that.
func (s *supervisor) preempt(ctx context.Context, sig unix.Signal, signals *job.Signals, made chan work, cutOff context.CancelCauseFunc) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var deadline time.Time
	if s.Grace > 0 {
		deadline = time.Now().Add(s.Grace)
		if !s.told.IsZero() {
			deadline = s.told.Add(s.Grace)
		}
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, deadline, fmt.Errorf("the %v of --grace are over", s.Grace))
		defer stop()
	}
	s.tell(Event{Event: EventPreempted, Message: fmt.Sprintf("got %s: %s leaves this host", unix.SignalName(sig), s.record.Name)})
	s.hurry()
	again := errors.New("got a second signal")
	over := make(chan struct{})
	defer close(over)
	go func() {
		for {
			select {
			case <-over:
				return
			case got := <-signals.Got():
				if slices.Contains(append(s.Preempt, unix.SIGINT), got.(unix.Signal)) {
					cancel(again)
				}
			}
		}
	}()
	if made != nil {
		select {
		case w := <-made:
			if w.left {
				return s.leave()
			}
		case <-ctx.Done():
			_ = s.sandbox.Kill() // there is no time for any other
			cutOff(context.Cause(ctx))
			<-made
		}
	}
	var resumeErr error
	if ctx.Err() == nil && s.paused.Load() {
		resumeErr = s.unpause(ctx)
	}
	switch expected, known := s.costs.expected(); {
	case ctx.Err() != nil:
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("no last checkpoint: %v", context.Cause(ctx))})
	case resumeErr != nil:
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("no last checkpoint: %v", resumeErr)})
	case s.Grace > 0 && known && time.Until(deadline) < expected.total:
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("no last checkpoint: it would take %v, and %v of --grace are left", expected.total.Round(time.Second), time.Until(deadline).Round(time.Second))})
	default:
		s.lastCheckpoint(ctx, unix.SignalName(sig))
	}
	return s.leave()
}

// leave ends what is left of the job here, and says how it goes on.
func (s *supervisor) leave() (int, error) {
	all, err := s.store.Checkpoints()
	if err == nil && len(all) == 0 && s.sandbox.IsAdopted() && s.sandbox.Alive() {
		return 0, s.leaveAdopted()
	}
	if endErr := s.endSandbox(); err != nil || endErr != nil {
		return 0, errors.Join(endErr, err)
	}
	return s.RequeueStatus, s.sayNext()
}

// sayNext says from where the job goes on.
func (s *supervisor) sayNext() error {
	all, err := s.store.Checkpoints()
	if err != nil {
		return err
	}
	if len(all) == 0 {
		s.say("there is no checkpoint: the same command starts the job anew")
	} else {
		newest := all[len(all)-1]
		s.say(fmt.Sprintf("the same command goes on from checkpoint %s of %s", newest.Name, age(newest)))
	}
	return nil
}

// lastTries is how often a last checkpoint is tried, as long as the job runs and there is time.
const lastTries = 3

// lastCheckpoint makes a checkpoint that ends the job.
func (s *supervisor) lastCheckpoint(ctx context.Context, reason string) {
	defer killPatiently(ctx, s.sandbox)()
	for try := range lastTries {
		c, err := s.makeCheckpoint(ctx, reason, true)
		if err == nil {
			s.tellCheckpoint(c)
			return
		}
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("no last checkpoint: %v", err)})
		if try == lastTries-1 || ctx.Err() != nil || s.root == nil || s.root.Exiting() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}
