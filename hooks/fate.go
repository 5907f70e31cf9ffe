package hooks

import (
	"errors"
	"fmt"
	"slices"
	"strings"

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

// fate is what became of the CUDA processes of a session. It says that a process runs on
// only if it was seen to.
type fate struct{ alive, ended []journal.Member }

// fateOf divides the processes into those that live and those that have ended.
func fateOf(members []journal.Member, alive func(journal.Member) bool) fate {
	var f fate
	for _, member := range members {
		if alive(member) {
			f.alive = append(f.alive, member)
		} else {
			f.ended = append(f.ended, member)
		}
	}
	return f
}

// outcome returns gone if all have ended, else ofTheLiving.
func (f fate) outcome(ofTheLiving journal.Outcome) journal.Outcome {
	if len(f.alive) == 0 {
		return journal.OutcomeGone
	}
	return ofTheLiving
}

// text says what became of the job. livingDo is what the living processes do, as in "runs
// on". Those that were stopped before we came stay so.
func (f fate) text(livingDo string) string {
	running := slices.ContainsFunc(f.alive, func(m journal.Member) bool { return !m.Stopped })
	if len(f.alive) > 0 && !running && strings.HasPrefix(livingDo, "runs") {
		livingDo = "is stopped, as it was before"
	}
	switch {
	case len(f.ended) == 0:
		return "the job " + livingDo
	case len(f.alive) == 0:
		return "the job has ended: " + namedMembers(f.ended)
	}
	return "a part of the job has ended: " + namedMembers(f.ended) + "; the rest " + livingDo
}

// err returns an error that wraps [ErrEnded] if any process has ended, else nil.
func (f fate) err(livingDo string) error {
	if len(f.ended) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrEnded, f.text(livingDo))
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
func (s *session) closeAlive(outcome journal.Outcome, message, livingDo string, before ...journal.Member) (fate, error) {
	f := fateOf(slices.Concat(s.fateMembers(), before), journal.Member.Alive)
	return f, s.close(f.outcome(outcome), message+f.text(livingDo))
}

// FateOf says what became of the job of a dump: of the CUDA processes of the session or, where
// there is none, of the root. It is empty if that is not known, or the job is not back yet.
func FateOf(s *journal.Session, root *proc.Process) string {
	switch {
	case s != nil && s.Outcome != journal.OutcomeRunning:
		return ""
	case s != nil:
		return fateOf(s.Members, journal.Member.Alive).text("runs on")
	case root != nil && !root.Exiting():
		return "the job runs on"
	}
	return ""
}

// CheckEnded returns an error if the job, or a part of it, has ended. It looks at the CUDA
// processes of the session or, where there is none, at the root.
func CheckEnded(s *journal.Session, root *proc.Process) error {
	if s != nil {
		return fateOf(s.Members, journal.Member.Alive).err("runs on")
	}
	if root != nil && root.Exiting() {
		return fmt.Errorf("%w: %v has ended", ErrEnded, root)
	}
	return nil
}
