package hooks

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"cucriu/hooks/preflight"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// ErrNotBack is wrapped by an error that left the job in a state that is not good yet. Its
// watcher goes on trying, and the status command shows why.
var ErrNotBack = errors.New("the job is not back yet")

// notBackError is an [ErrNotBack] that says so in words of its own.
type notBackError struct{ error }

func (e *notBackError) Unwrap() error        { return e.error }
func (e *notBackError) Is(target error) bool { return target == ErrNotBack }

// ErrEnded is wrapped by the error of a dump, a suspend or a resume during which processes
// of the job have ended.
var ErrEnded = errors.New("the job is not as it was")

// jobOutcome is what became of the CUDA processes of a session. It says that a process runs on
// only if it was seen to.
type jobOutcome struct{ alive, ended []journal.Member }

func outcomeOf(members []journal.Member) jobOutcome {
	var o jobOutcome
	for _, member := range members {
		if member.Alive() {
			o.alive = append(o.alive, member)
		} else {
			o.ended = append(o.ended, member)
		}
	}
	return o
}

// recorded returns gone if all have ended, else ofTheLiving.
func (o jobOutcome) recorded(ofTheLiving journal.Outcome) journal.Outcome {
	if len(o.alive) == 0 {
		return journal.OutcomeGone
	}
	return ofTheLiving
}

// text says what became of the job. livingDo is what the living processes do, as in "runs
// on". Those that were stopped before we came stay so.
func (o jobOutcome) text(livingDo string) string {
	running := slices.ContainsFunc(o.alive, func(m journal.Member) bool { return !m.Stopped })
	if len(o.alive) > 0 && !running && strings.HasPrefix(livingDo, "runs") {
		livingDo = "is stopped, as it was before"
	}
	switch {
	case len(o.ended) == 0:
		return "the job " + livingDo
	case len(o.alive) == 0:
		return "the job has ended: " + namedMembers(o.ended)
	}
	return "a part of the job has ended: " + namedMembers(o.ended) + "; the rest " + livingDo
}

// err returns an error that wraps [ErrEnded] if any process has ended, else nil.
func (o jobOutcome) err(livingDo string) error {
	if len(o.ended) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrEnded, o.text(livingDo))
}

func namedMembers(members []journal.Member) string {
	names := make([]string, len(members))
	for i, member := range members {
		names[i] = fmt.Sprintf("process %d (%s)", member.PID, member.Name)
	}
	return strings.Join(names, ", ")
}

// closeAlive closes a session whose living processes are in the state of the outcome. After
// the message it says what became of its members and, with them, of the members that it had
// before.
func (s *session) closeAlive(outcome journal.Outcome, message, livingDo string, before ...journal.Member) (jobOutcome, error) {
	o := outcomeOf(slices.Concat(membersOrRoot(&s.Record), before))
	return o, s.close(o.recorded(outcome), message+o.text(livingDo))
}

// membersOrRoot are the processes by which the outcome of a job is judged: those that use CUDA or, if
// none does, the root.
func membersOrRoot(r *journal.Record) []journal.Member {
	if len(r.Members) > 0 || r.Root == nil {
		return r.Members
	}
	var name string
	if status, err := proc.ReadStatus(r.Root.PID); err == nil {
		name = status.Name
	}
	return []journal.Member{{Process: preflight.Process{Ident: *r.Root, Name: name}}}
}

// OutcomeText says what became of the job of a dump: of the CUDA processes of the session or, where
// there is none, of the root. It is empty if that is not known, or the job is not back yet.
func OutcomeText(s *journal.Session, root *proc.Process) string {
	switch {
	case s != nil && s.Outcome != journal.OutcomeRunning:
		return ""
	case s != nil:
		return outcomeOf(s.Members).text("runs on")
	case root != nil && !root.Exiting():
		return "the job runs on"
	}
	return ""
}

// CheckEnded returns an error if the job, or a part of it, has ended. It looks at the CUDA
// processes of the session or, where there is none, at the root.
func CheckEnded(s *journal.Session, root *proc.Process) error {
	if s != nil {
		return outcomeOf(s.Members).err("runs on")
	}
	if root != nil && root.Exiting() {
		return fmt.Errorf("%w: %v has ended", ErrEnded, root)
	}
	return nil
}
