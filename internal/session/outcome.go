package session

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"cucriu/internal/inspect"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
	"cucriu/internal/timeline"
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

// Status is what there is to know of a dump, a restore or a suspend from outside.
type Status struct {
	Session string       `json:"session"` // its name in the run directory
	Kind    journal.Kind `json:"kind"`
	Begun   time.Time    `json:"begun"`
	// CriuPID is the pid of criu, or of the command that suspends or resumes.
	CriuPID   int             `json:"criu_pid"`
	RootPID   int             `json:"root_pid,omitempty"` // of the tree; 0 if it is not known
	ImageDir  string          `json:"image_dir,omitempty"`
	Processes []StatusProcess `json:"processes"` // those that use CUDA
	// Step is the step that was begun last.
	Step journal.Step `json:"step"`
	// Outcome is empty while the session is open.
	Outcome journal.Outcome `json:"outcome"`
	Message string          `json:"message"`
	// NotBack says that the last attempt to restore the job has failed. Message says why.
	NotBack bool `json:"not_back"`
	// Elsewhere says that the session is open and belongs to another pid namespace: it is left to the
	// programs there.
	Elsewhere bool            `json:"elsewhere"`
	Phases    timeline.Phases `json:"phases"`
}

// StatusProcess is a CUDA process of a session.
type StatusProcess struct {
	PID     int    `json:"pid"`
	Name    string `json:"name"`
	Stopped bool   `json:"stopped"` // before the session began
	// GPUBytes is what the process held on all GPUs; 0 if that is not known.
	GPUBytes uint64 `json:"gpu_bytes"`
}

// PIDs returns the pids of the CUDA processes.
func (s Status) PIDs() []int {
	pids := make([]int, len(s.Processes))
	for i, p := range s.Processes {
		pids[i] = p.PID
	}
	return pids
}

// Sessions says how every session in a run directory stands, the oldest first. It leaves out what
// cannot be read.
func Sessions(runDir string) ([]Status, error) {
	all, err := journal.List(runDir)
	if err != nil {
		return nil, err
	}
	statuses := make([]Status, len(all)) // not nil: null is no list in JSON
	for i, s := range all {
		statuses[i] = StatusOf(s)
	}
	return statuses, nil
}

// StatusOf says how a session stands.
func StatusOf(s *journal.Session) Status {
	status := Status{
		Session: s.Name(), Kind: s.Kind, Begun: s.Created, CriuPID: s.Criu.PID, ImageDir: s.ImageDir,
		Processes: make([]StatusProcess, len(s.Members)), Step: s.Step, Outcome: s.Outcome, Message: s.Message,
		NotBack: s.Stuck && s.Outcome == "", Elsewhere: s.Elsewhere(), Phases: s.Phases,
	}
	if isPublished(s) {
		status.ImageDir = s.PublishedDir
		status.Message = strings.ReplaceAll(s.Message, s.ImageDir, s.PublishedDir)
	} else if s.PublishedDir != "" && s.Outcome == journal.OutcomeRunning { // the dump failed and left nothing
		status.ImageDir = s.PublishedDir
	}
	if s.Kind == journal.KindDump && s.Held() && s.Message == "" {
		status.Message = fmt.Sprintf("on its way to %s, and stopped until it is decided where it will run (migration %s)", s.Hold.Peer, s.Hold.ID)
	}
	if s.Suspended() && len(s.Members) > 0 && len(OutcomeOf(s.Members).Alive) == 0 {
		status.Message = "ended while suspended; cucriu recover closes the session"
	}
	alive := func(id proc.Ident) bool { return id.Alive() }
	if s.Outcome == "" && status.Message == "" && !s.Suspended() && !s.Elsewhere() && !slices.ContainsFunc(s.Owners(), alive) {
		status.Message = "what worked on it has ended: cucriu recover brings it to its end"
	}
	if s.Root != nil {
		status.RootPID = s.Root.PID
	}
	for i, m := range s.Members {
		status.Processes[i] = StatusProcess{PID: m.PID, Name: m.Name, Stopped: m.Stopped, GPUBytes: m.StagedBytes()}
	}
	return status
}

// isPublished reports whether the image has got its final name.
func isPublished(s *journal.Session) bool {
	if s.PublishedDir == "" || s.Kind != journal.KindDump {
		return false
	}
	switch s.Step {
	case journal.StepDumped:
		return true
	case journal.StepPublish: // it may be under way
		_, err := os.Stat(s.ImageDir)
		return errors.Is(err, os.ErrNotExist)
	}
	return false
}
