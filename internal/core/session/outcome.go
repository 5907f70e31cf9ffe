package session

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/proc"
)

// ErrNotBack is wrapped by an error that left the job in a state that is not good yet. Its watcher goes
// on trying, and the status command shows why.
var ErrNotBack = errors.New("the job is not recovered yet")

// notBackError is an [ErrNotBack] that says so in words of its own.
type notBackError struct{ error }

func (e *notBackError) Unwrap() error        { return e.error }
func (e *notBackError) Is(target error) bool { return target == ErrNotBack }

// NotBack makes an error one that wraps [ErrNotBack].
func NotBack(err error) error { return &notBackError{err} }

// ErrEnded is wrapped by the error of a dump, a suspend or a resume during which processes of the job
// have ended.
var ErrEnded = errors.New("the job is not as it was")

// JobOutcome is what became of the CUDA processes of a session. It says that a process keeps running only if
// it was seen to.
type JobOutcome struct{ Alive, Ended []journal.Member }

func OutcomeOf(members []journal.Member) JobOutcome {
	var o JobOutcome
	for _, member := range members {
		if member.Alive() {
			o.Alive = append(o.Alive, member)
		} else {
			o.Ended = append(o.Ended, member)
		}
	}
	return o
}

// recorded returns gone if all have ended, else ofTheLiving.
func (o JobOutcome) recorded(ofTheLiving journal.Outcome) journal.Outcome {
	if len(o.Alive) == 0 {
		return journal.OutcomeGone
	}
	return ofTheLiving
}

// Text says what became of the job. livingDo is what the living processes do, as in "keeps running". Those
// that were stopped before we came stay so.
func (o JobOutcome) Text(livingDo string) string {
	running := slices.ContainsFunc(o.Alive, func(m journal.Member) bool { return !m.Stopped })
	if len(o.Alive) > 0 && !running && strings.Contains(livingDo, "run") {
		livingDo = "is stopped, as it was before"
	}
	switch {
	case len(o.Ended) == 0:
		return "the job " + livingDo
	case len(o.Alive) == 0:
		return "the job has ended: " + NamedMembers(o.Ended)
	}
	return "a part of the job has ended: " + NamedMembers(o.Ended) + "; the rest " + livingDo
}

// Err returns an error that wraps [ErrEnded] if any process has ended, else nil.
func (o JobOutcome) Err(livingDo string) error {
	if len(o.Ended) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrEnded, o.Text(livingDo))
}

func NamedMembers(members []journal.Member) string {
	names := make([]string, len(members))
	for i, member := range members {
		names[i] = fmt.Sprintf("process %d (%s)", member.PID, member.Name)
	}
	return strings.Join(names, ", ")
}

// CloseAlive closes a session whose living processes are in the state of the outcome. The message goes
// on with what became of its members, and of those that it had before.
func (s *Session) CloseAlive(outcome journal.Outcome, message, livingDo string, before ...journal.Member) (JobOutcome, error) {
	o := OutcomeOf(slices.Concat(MembersOrRoot(&s.Record), before))
	return o, s.Close(o.recorded(outcome), message+o.Text(livingDo))
}

// MembersOrRoot are the processes by which the outcome of a job is judged: those that use CUDA or, if
// none does, the root.
func MembersOrRoot(r *journal.Record) []journal.Member {
	if len(r.Members) > 0 || r.Root == nil {
		return r.Members
	}
	var name string
	if status, err := proc.ReadStatus(r.Root.PID); err == nil {
		name = status.Name
	}
	return []journal.Member{{Process: inspect.Process{Ident: *r.Root, Name: name}}}
}

// OutcomeText says what became of the job of a dump: of the CUDA processes of the session or, where
// there is none, of the root. It is empty if that is not known, or the job is not back yet.
func OutcomeText(s *journal.Session, root *proc.Process) string {
	switch {
	case s != nil && s.Outcome != journal.OutcomeRunning:
		return ""
	case s != nil:
		return OutcomeOf(s.Members).Text("keeps running")
	case root != nil && !root.Exiting():
		return "the job keeps running"
	}
	return ""
}

// CheckEnded returns an error if the job, or a part of it, has ended. It looks at the CUDA processes of
// the session or, where there is none, at the root.
func CheckEnded(s *journal.Session, root *proc.Process) error {
	if s != nil {
		return OutcomeOf(s.Members).Err("keeps running")
	}
	if root != nil && root.Exiting() {
		return fmt.Errorf("%w: %v has ended", ErrEnded, root)
	}
	return nil
}
