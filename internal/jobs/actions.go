package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/job"
	"cucriu/internal/jobs/life"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/proc"
)

// do executes an action.
func (s *supervisor) do(ctx context.Context, a life.Action) {
	e := s.event
	switch a {
	case life.Attend:
		s.attend(ctx)
	case life.Keep:
		s.kept = append(s.kept, e.signal)
	case life.GiveUp:
		s.told, s.kept = e.signal, append(s.kept, e.signal)
		s.inform(fmt.Sprintf("got %s while %s is being started or resumed", unix.SignalName(e.signal), s.name))
		s.giveUp(fmt.Errorf("got %s", unix.SignalName(e.signal)))
	case life.Hasten:
		s.told = e.signal
		s.setLeaving(true)
		next := "making a last checkpoint"
		if e.Late {
			next = s.name + " leaves this host"
		}
		s.tell(Event{Event: EventPreempted, Message: fmt.Sprintf("got %s: %s", unix.SignalName(e.signal), next)})
		s.checkpointer.endHousekeeping()
	case life.Stay:
		s.setLeaving(false)
	case life.CutOff:
		s.cause = cmp.Or(e.err, errors.New("got a second signal"))
		s.cutOff(s.cause)
	case life.StartGrace:
		s.timers.startGrace(s.Grace)
	case life.Kill:
		if e.Kind == life.Tick {
			s.say("the job was killed while criu was working on it, and criu is waiting for it: both are being killed")
		}
		if s.mayEnd(s.sandbox) == nil {
			_ = s.sandbox.Kill() // the end of the supervisor tries it again
		}
	case life.KillRest:
		if s.rootEnds() { // else the tree stays whole, and what is under way comes to its end
			_, _ = s.awaitExit()
			_ = s.sandbox.Kill()
		}
	case life.Schedule:
		s.timers.schedule(s.isScheduled(), s.checkpointer.untilNext(nil))
		s.status.runs(s.life.Paused, s.timers.next)
	case life.Retry:
		s.timers.schedule(s.isScheduled(), s.checkpointer.untilNext(e.err))
		s.status.runs(s.life.Paused, s.timers.next)
	case life.Show:
		s.status.runs(s.life.Paused, s.timers.next)
	case life.Skip:
		pause, _ := s.checkpointer.exceedsMaxPause()
		s.tell(Event{Event: EventSkipped, Message: fmt.Sprintf("no checkpoint: the job would be paused for about %v, and %v is allowed (--max-pause)", pause.Round(time.Millisecond), s.MaxPause)})
		s.status.note(func(l *Local) { l.Missed++ })
		s.checkpointer.costs = s.checkpointer.costs[1:] // so that it is tried again some time
	case life.Pass:
		s.pass(e.signal, s.life.Paused)
		if s.life.Told && s.isEndless() {
			s.setLeaving(true)
		}
	case life.Restart:
		s.noteRestart()
	case life.StopSelf:
		job.StopSelf()
	case life.Answer:
		s.control.answer(s.control.result(e, s.life.Phase == life.Over))
	case life.AnswerAtEnd:
		s.tell(Event{Event: EventStopped, Message: s.name + " was stopped by its user"})
		s.control.answerAtEnd()
	case life.Refuse:
		s.control.answer(Answer{}, s.control.refusal(s.life, s.move.Peer, e.err))
	case life.TellNoLast:
		expected, _ := s.checkpointer.costs.expected()
		why := fmt.Errorf("it would take %v, and %v of --grace is left", expected.total.Round(time.Second), s.timers.left(s.Grace).Round(time.Second))
		if s.life.Hurry {
			why = cmp.Or(s.cause, fmt.Errorf("it did not finish within --grace %v", s.Grace))
		}
		s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("no last checkpoint: %v", why)})
	default:
		if s.life.Phase == life.Over {
			s.exitStatus, s.err = s.end(a)
			return
		}
		s.begin(ctx, a)
	}
}

// attend begins to wait for what happens to a job that is here.
func (s *supervisor) attend(ctx context.Context) {
	s.checkpointer.housekeeping, s.checkpointer.endHousekeeping = context.WithCancel(ctx)
	ended := make(chan time.Time, 1)
	if s.isExiting() {
		ended <- time.Now()
	} else {
		var once sync.Once
		for _, p := range []*proc.Process{s.leader(), s.root} { // without its root, the job is no tree any more
			go func() {
				awaitEnd(ctx, p)
				once.Do(func() { ended <- time.Now() })
			}()
		}
	}
	s.ended, s.endedAt = ended, time.Time{}
	s.status.note(func(l *Local) {
		if l.Command = nil; s.command != nil {
			l.Command = &s.command.Ident
		}
	})
	if s.waitAll {
		go s.tellOthers(ctx, s.root, s.command)
	}
	if s.starter.started != nil {
		go s.runStarted(s.checkpointer.housekeeping, *s.instance, s.starter.started)
		s.starter.started = nil
	}
	s.timers.look.Reset(lookAfter)
	if s.CheckpointWhen.String() != "" && s.status.newest() == nil {
		s.waitsForFirst.Add(1)
		go s.awaitFirst(s.checkpointer.housekeeping)
	}
}

func awaitEnd(ctx context.Context, p *proc.Process) {
	for p.WaitExit(ctx) != nil && ctx.Err() == nil && p.Alive() { // the system could not wait
		_ = wait(ctx, time.Second)
	}
}

// detach ends what attend began, and what a leaving job does not wait for.
func (s *supervisor) detach() {
	if s.checkpointer.endHousekeeping != nil {
		s.checkpointer.endHousekeeping()
	}
	s.checkpointer.trial.await()
}

// begin begins an action that takes time. It reports back as an event.
func (s *supervisor) begin(ctx context.Context, a life.Action) {
	ctx, s.cutOff = context.WithCancelCause(ctx)
	progress := map[life.Action]string{
		life.Checkpoint: "making a checkpoint", life.Last: "making a last checkpoint",
		life.Pause: "moving GPU memory into host memory", life.Unpause: "moving GPU memory back to the GPUs",
	}[a]
	if s.control.asked != nil && progress != "" {
		var expected cost
		if a == life.Checkpoint || a == life.Last {
			expected, _ = s.checkpointer.costs.expected()
		}
		s.control.asked.say(progress, expected.total)
	}
	if a == life.Checkpoint || a == life.Last && s.control.asked != nil {
		s.status.is(StateCheckpoint)
	}
	act := s.actor(ctx, a)
	go func() {
		e := happened(life.Done)
		e.of, e.OK = a, true
		if err := act(&e); err != nil {
			if e.err, e.OK = err, false; e.Kind != life.Done {
				e.Kind = life.Failed
			}
		}
		s.done <- e
	}()
}

// actor returns what does an action that takes time. It may change what happened from [life.Done].
func (s *supervisor) actor(ctx context.Context, a life.Action) func(e *event) error {
	var op life.Op
	if s.control.asked != nil {
		op = s.control.asked.Op
	}
	switch a {
	case life.AwaitMove:
		s.status.is(StateMoving)
		s.tell(Event{Event: EventMoving, Message: fmt.Sprintf("%s is being moved to %s: waiting", s.name, s.move.Peer)})
		return func(e *event) (err error) {
			for e.Kind = life.MoveOpen; e.Kind == life.MoveOpen && err == nil; {
				if err = wait(ctx, moveLook); err == nil {
					err = s.findMove(ctx, e)
				}
			}
			return err
		}
	case life.Begin:
		told, giveUp := context.WithCancelCause(ctx)
		s.giveUp = giveUp
		return func(e *event) error {
			defer giveUp(nil)
			if e.Kind = life.Here; s.sandbox != nil {
				if err := s.endBefore(told); err != nil {
					return err
				}
			}
			err := s.starter.begin(ctx, told)
			if e.Kind, e.Paused = life.Here, s.starter.paused; s.record.Finished != nil { // while nobody looked
				e.Kind = life.Finished
			} else if err == nil && s.sandbox != nil {
				s.sayError(s.publishPorts())
			}
			return err
		}
	case life.Tidy:
		return func(*event) error { s.checkpointer.tidyUp(); return nil }
	case life.Look:
		return func(*event) error { s.checkpointer.look(ctx); return nil }
	case life.Checkpoint:
		reason := map[life.Op]string{"": onSchedule, life.AskCheckpoint: "request", life.AskPause: "pause"}[op]
		return func(e *event) (err error) {
			e.checkpoint, err = s.checkpointer.checkpoint(ctx, reason)
			return err
		}
	case life.Pause:
		return func(e *event) (err error) {
			e.Paused, err = s.pause(ctx)
			return err
		}
	case life.Unpause:
		return func(*event) error {
			err := s.unpause(ctx)
			if err != nil && op == "" {
				s.tell(Event{Event: EventFailed, Message: fmt.Sprintf("no last checkpoint: %v", err)})
			}
			return err
		}
	case life.Last:
		reason := cmp.Or(string(op), unix.SignalName(s.told))
		return func(e *event) (err error) {
			e.checkpoint, err = s.checkpointer.last(ctx, reason, string(op))
			if e.Gone = err != nil && s.isExiting(); e.Gone && op != "" { // no signal has told the job to end
				s.endOthers(context.WithoutCancel(ctx))
				exit, exitErr := s.awaitExit()
				e.Well = exitErr == nil && exit.Code() == 0
			}
			return err
		}
	case life.Prune:
		policy := s.control.asked.Prune
		return func(e *event) (err error) {
			e.removed, err = s.store.Prune(ctx, policy)
			return err
		}
	case life.EndSandbox:
		s.ended = nil
		return func(*event) error { s.detach(); return s.leave() }
	case life.ReadExit:
		return func(e *event) error {
			s.endOthers(ctx)
			return s.readExit(e)
		}
	case life.Listen:
		return func(*event) error { return wait(ctx, togetherPatience) }
	}
	return func(*event) error { return wait(ctx, lastPause) }
}

const (
	// togetherPatience is how far apart two processes may get a signal that is sent to both.
	togetherPatience = time.Second
	// lastPause is how long to wait for another try of a last checkpoint.
	lastPause = time.Second
)

// wait waits until ctx ends or some time has passed.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// readExit finds out how the job has ended.
func (s *supervisor) readExit(e *event) (err error) {
	e.Kind = life.Exited
	if e.exit, err = s.awaitExit(); err != nil {
		return err
	}
	if e.err = s.store.Fenced(); errors.Is(e.err, store.ErrFenced) {
		e.Kind = life.Fenced
	} else if code := e.exit.Code(); code == 0 || slices.ContainsFunc(s.Preempt, func(sig unix.Signal) bool { return code == 128+int(sig) }) {
		e.Kind = life.ExitedWell
	}
	return nil
}

// end ends the supervisor, and returns its exit status.
func (s *supervisor) end(a life.Action) (status int, err error) {
	switch e := s.event; a {
	case life.EndMoved:
		s.tell(Event{Event: EventMoved, Message: fmt.Sprintf("%s has moved to %s", s.name, e.move.Peer)})
		return s.MovedStatus, nil
	case life.EndUndecided:
		sig := cmp.Or(e.signal, s.told)
		s.tell(Event{Event: EventPreempted, Message: fmt.Sprintf("got %s while %s is being moved; if it does not move, the same command resumes from its last checkpoint", unix.SignalName(sig), s.name)})
		return s.RequeueStatus, nil
	case life.EndFinished:
		return s.sayFinished(), nil
	case life.EndGivenUp:
		return s.endGivenUp()
	case life.EndFenced:
		return 0, errors.Join(fmt.Errorf("%s was ended here: %w", s.name, e.err), s.endSandbox())
	case life.EndAsTold:
		s.setLeaving(true)
		s.tell(Event{Event: EventPreempted, Message: s.name + " ended when it was asked to leave this host, and is not considered finished"})
		return s.endLeaving(true)
	case life.EndLeave:
		return s.endLeaving(s.life.Gone)
	case life.EndJob:
		return s.endJob()
	}
	return 0, s.event.err // of EndFailed or Abandon
}

// endLeaving ends what is left of the job here, and says from where it resumes. byItself says that the job has ended
// before a last checkpoint was made.
func (s *supervisor) endLeaving(byItself bool) (int, error) {
	if err := s.leave(); err != nil {
		return 0, err
	}
	s.tellLoss(time.Now(), byItself)
	return s.RequeueStatus, s.sayNext()
}

// leastLost is how many intervals of work must be lost for a job that leaves to say so as a failure.
const leastLost = 2

// tellLoss tells how much work a job loses that leaves without a checkpoint of it.
func (s *supervisor) tellLoss(now time.Time, byItself bool) {
	since := s.status.workSince()
	interval := s.checkpointer.interval()
	isMuch := interval > 0 && now.Sub(since) >= leastLost*interval
	if byItself = byItself && s.status.newest() != nil; since.IsZero() || !isMuch && !byItself {
		return // without any checkpoint, what comes next says so
	}
	message := fmt.Sprintf("what %s has done since %s is lost: %v", s.record.Name,
		since.Local().Format(time.DateTime), now.Sub(since).Round(time.Second))
	if isMuch {
		message += fmt.Sprintf(", %d times the interval between checkpoints", now.Sub(since)/interval)
	}
	if byItself {
		message += "; it ended before a last checkpoint was made: if it got the signal, too, have that sent to cucriu run alone (systemd: KillMode=mixed)"
	}
	s.tell(Event{Event: EventFailed, Message: message})
}

// endGivenUp ends a supervisor that was told so before the job was here. A job whose state is not
// known may be half there.
func (s *supervisor) endGivenUp() (int, error) {
	name := unix.SignalName(s.told)
	s.hook.Log.Info("Giving up the job before it was started or resumed", "signal", name, "error", s.event.err)
	s.tell(Event{Event: EventPreempted, Message: fmt.Sprintf("got %s before %s was started or resumed: it leaves this host", name, s.name)})
	if err := s.leave(); err != nil {
		return 0, err
	}
	status := 128 + int(s.told)
	if slices.Contains(s.Preempt, s.told) {
		status = s.RequeueStatus
	}
	return status, s.sayNext()
}

// isEndless reports whether the job is one that has not finished if it ends with 0 because it was asked to end.
func (s *supervisor) isEndless() bool { return len(s.Preempt) == 0 || s.Restart == RestartAlways }

// endJob tells how the job has ended by itself.
func (s *supervisor) endJob() (int, error) {
	status, next := s.exit.Code(), ""
	if s.Restart.after(s.exit) && endsTooOften(s.ends, time.Now()) && !s.life.Told && !s.life.Leave {
		return 0, s.endTooOften()
	}
	if status == 0 && s.life.Told && s.isEndless() {
		s.tell(Event{Event: EventPreempted, Message: s.name + " has ended with exit status 0 after a signal " +
			"that asks it to, and is not considered finished: the same command starts or resumes it"})
		return 0, s.endSandbox()
	}
	if status == 0 {
		if err := s.finish(status, s.exit.At); err != nil {
			return 0, err
		}
	} else if all, err := s.store.Checkpoints(); err == nil && (len(all) > 0 || s.staged != "") {
		next = "; " + s.resumesFrom(all)
	}
	s.tellEnded(s.exit, next)
	return status, s.endSandbox()
}
