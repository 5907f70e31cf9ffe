package journal

import (
	"cmp"
	"fmt"
	"time"

	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
)

// Conflict returns an error that says that this session is in the way of another. It returns
// nil if s is nil.
func (s *Session) Conflict() error {
	if s == nil {
		return nil
	}
	begun := s.Created.Local().Format(time.TimeOnly)
	if s.Elsewhere() && s.Suspended() {
		return fault.New(
			fmt.Sprintf("it was suspended at %s in another pid namespace (%s)", begun, s.dir),
			fmt.Sprintf("resume it there, with cucriu resume -p %d; or a long job that was paused with cucriu jobs resume", s.Members[0].PID))
	}
	if s.Elsewhere() {
		return fault.New(fmt.Sprintf("a %s of the same process, begun %s in another pid namespace, has not finished (%s, %s)", s.Kind, begun, s.dir, s.at()), "wait for it")
	}
	if s.Kind == KindSuspend {
		return s.suspendConflict()
	}
	if s.Held() {
		return fault.New(
			fmt.Sprintf("process %d is held by migration %s (the other copy is at %s), begun %s", s.rootPID(), s.Hold.ID, s.Hold.Peer, begun),
			"wait for it; if its programs are gone, cucriu status says which host decides")
	}
	if s.EndsJob() {
		return fault.New(fmt.Sprintf("process %d is being dumped by process %d, which will end it", s.rootPID(), s.Client.PID), "wait for it")
	}
	what := fmt.Sprintf("a %s by criu process %d, begun %s,", s.Kind, s.Criu.PID, begun)
	if s.Stuck {
		return fault.New(what+" has ended, and its job is "+s.Message, "its watcher keeps trying; if that is gone, cucriu recover tries again")
	}
	return fault.New(
		fmt.Sprintf("%s has not finished (%s)", what, s.at()),
		"wait for it; if criu and its watcher are gone, run cucriu recover; if it is this criu's own, cucriu-hook is configured twice, in two of criu's configuration files")
}

func (s *Session) suspendConflict() error {
	suspended := fmt.Sprintf("process %d", s.Members[0].PID)
	if more := len(s.Members) - 1; more > 0 {
		suspended += fmt.Sprintf(" (and %d more)", more)
	}
	remedy := fmt.Sprintf("resume it with cucriu resume -p %d", s.Members[0].PID)
	if !s.Suspended() {
		return fault.New(
			fmt.Sprintf("%s is being suspended or resumed by process %d (%s)", suspended, s.Criu.PID, s.at()),
			"wait for it; if it is gone, "+remedy)
	}
	meaning := fmt.Sprintf("%s was suspended at %s", suspended, s.Created.Local().Format(time.TimeOnly))
	if s.Message != "" {
		meaning += "; " + s.Message
	}
	return fault.New(meaning, remedy)
}

// ClaimConflict returns an error that says that this session has claimed the image directory of
// another.
func (s *Session) ClaimConflict() error {
	return fmt.Errorf("image directory %s is in use by a dump of criu process %d (session %s, %s): nothing was touched; dump into another directory, "+
		"and if that criu and its watcher are gone, run cucriu recover", s.ImageDir, s.Criu.PID, s.Name(), s.at())
}

// EndsJob reports whether programs that live are dumping the processes and will end them, so that
// there is nothing to wait for.
func (s *Session) EndsJob() bool {
	isGone := func(id proc.Ident) bool {
		process, err := proc.Reopen(id)
		return err != nil || process.Close() != nil
	}
	return s.Kind == KindDump && !s.LeaveRunning && !s.LeaveStopped && s.Client != nil && s.Outcome == "" && !isGone(s.Criu) && !isGone(*s.Client)
}

func (s *Session) at() string { return "step " + cmp.Or(string(s.Step), "begin") }

func (s *Session) rootPID() int {
	if s.Root == nil {
		return 0
	}
	return s.Root.PID
}
