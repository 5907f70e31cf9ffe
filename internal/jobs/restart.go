package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/kit/failpoint"
)

// Restart says when a job that has ended by itself is started again. The words are systemd's. Other than there, a start
// that fails is not tried again, and the limit of starts is [mostEnds] within [endsWithin].
type Restart string

// The zero Restart is no, too.
const (
	RestartNo        Restart = "no"
	RestartOnFailure Restart = "on-failure" // after an exit status that is not 0, or a signal that is none of clean
	RestartAlways    Restart = "always"
)

// clean are the signals by which a program may end without a failure.
var clean = []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGPIPE}

// after reports whether a job that has ended so is to be started again.
func (r Restart) after(exit sandbox.Exit) bool {
	if r == RestartOnFailure {
		return !exit.Unknown && exit.Code() != 0 && !(exit.Status.Signaled() && slices.Contains(clean, exit.Status.Signal()))
	}
	return r == RestartAlways
}

const (
	mostEnds     = 5 // within endsWithin: after these a job is not started again
	endsWithin   = time.Minute
	restartPause = 100 * time.Millisecond
)

// endsTooOften reports whether a job that ends now has ended too often, given when it ended before.
func endsTooOften(ends []time.Time, now time.Time) bool {
	n := len(ends) - (mostEnds - 1)
	return n >= 0 && now.Sub(ends[n]) < endsWithin
}

// startsAgain reports whether the job, which has ended, is to be started again. One that was adopted has no command.
func (s *supervisor) startsAgain() bool {
	can := !s.record.Adopted || s.status.newest() != nil
	return can && s.Restart.after(s.exit) && !endsTooOften(s.ends, time.Now())
}

// noteRestart notes that the job, which has ended, is started again.
func (s *supervisor) noteRestart() {
	s.ends = append(s.ends, time.Now())
	s.isNew = false // it has run: what prevents its start from now on does not make its record go
	restarts := 0
	s.status.note(func(l *Local) {
		l.Restarts++
		l.State, l.Next, restarts = StateBegins, time.Time{}, l.Restarts
	})
	message := fmt.Sprintf("%s, and is started again (restart %d)", s.howEnded(s.exit), restarts)
	s.tell(Event{Event: EventRestarted, Status: s.exit.Code(), Message: message})
}

// endBefore ends what is left of the job that ran before a restart. The next one is begun only if that is gone.
func (s *supervisor) endBefore(told context.Context) error {
	s.detach()
	err := s.leave()
	if err == nil {
		for _, stage := range s.pending { // to the begin that follows, which makes a checkpoint of the newest
			s.store.LeaveStage(stage)
		}
		s.pending = nil
		err = failpoint.Hit(told, "jobs.restart", 0)
	}
	if err == nil {
		err = s.store.Renew()
	}
	if err == nil {
		err = failpoint.Hit(told, "jobs.renewed", 0)
	}
	if err == nil {
		err = wait(told, restartPause)
	}
	return err
}

// endTooOften ends a job that is not started again because it has ended too often.
func (s *supervisor) endTooOften() error {
	err := fmt.Errorf("%s, and is not started again: that was the %dth end within %v", s.howEnded(s.exit), mostEnds,
		endsWithin)
	s.tell(Event{Event: EventFailed, Message: err.Error()})
	s.status.is(StateFailed)
	return errors.Join(err, s.endSandbox())
}
