package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"cucriu/hooks/timeline"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/proc"
)

// The steps of which [hooks.Hook.Progress] is told that take long, in the order in which they come.
const (
	StepLock       = string(journal.StepLock) // from here on the job is paused
	StepMove       = string(journal.StepMove)
	StepCheckpoint = string(journal.StepCheckpoint)
	StepCopy       = string(journal.StepCopy)
	StepDumping    = string(journal.StepDumping)
	StepTrial      = "trial" // of a restore, beside the job
	StepPublish    = string(journal.StepPublish)

	StepPreRestore = string(journal.StepPreRestore)
	StepCheckImage = "check image" // waits for the check of the image
	StepRestoreGPU = session.StepRestoreGPU
)

// Kind is what a session does.
type Kind string

// The kinds of session. A suspend checkpoints processes where they run, without criu.
const (
	KindDump    = Kind(journal.KindDump)
	KindRestore = Kind(journal.KindRestore)
	KindSuspend = Kind(journal.KindSuspend)
)

// Outcome says what became of a session's processes. It is empty while the session is open.
type Outcome string

// The outcomes of a session.
const (
	OutcomeDumped  = Outcome(journal.OutcomeDumped)  // criu wrote the image and ended the processes
	OutcomeRunning = Outcome(journal.OutcomeRunning) // the processes run, or are stopped as they were before
	OutcomeStopped = Outcome(journal.OutcomeStopped) // GPU state is restored; the processes are left stopped, as asked
	OutcomeKilled  = Outcome(journal.OutcomeKilled)  // a restore failed: its processes were killed, and the image is unchanged
	OutcomeGone    = Outcome(journal.OutcomeGone)    // the processes ended by themselves, or with a criu that failed
	OutcomeLeft    = Outcome(journal.OutcomeLeft)    // a restore failed: its processes are left stopped, as configured
	OutcomeMoved   = Outcome(journal.OutcomeMoved)   // the job has moved to another host: its processes here were ended
)

// Status is what there is to know of a dump, a restore or a suspend.
type Status struct {
	Session string    `json:"session"` // its name in the run directory
	Kind    Kind      `json:"kind"`
	Begun   time.Time `json:"begun"`
	// CriuPID is the pid of criu, or of the command that suspends or resumes.
	CriuPID   int             `json:"criu_pid"`
	RootPID   int             `json:"root_pid,omitempty"` // of the tree; 0 if it is not known
	ImageDir  string          `json:"image_dir,omitempty"`
	Processes []StatusProcess `json:"processes"` // those that use CUDA
	// Step is the step that was begun last.
	Step string `json:"step"`
	// Outcome is empty while the session is open.
	Outcome Outcome `json:"outcome"`
	Message string  `json:"message"`
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

// Suspended reports whether the processes stay checkpointed until somebody resumes them.
func (s Status) Suspended() bool {
	return s.Kind == KindSuspend && s.Step == string(journal.StepSuspended) && s.Outcome == ""
}

// Dumped reports whether it is a dump whose image is complete.
func (s Status) Dumped() bool { return s.Kind == KindDump && s.Step == string(journal.StepDumped) }

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
	return statusesOf(all), nil
}

// Timeline says where the time of a session went. The error is [os.ErrNotExist] if the run directory has no session of
// this name.
func Timeline(runDir, name string) (timeline.Trace, error) {
	all, err := journal.List(runDir)
	if err != nil {
		return timeline.Trace{}, err
	}
	at := slices.IndexFunc(all, func(s *journal.Session) bool { return s.Name() == name })
	if at < 0 {
		return timeline.Trace{}, os.ErrNotExist
	}
	return all[at].Timeline(), nil
}

// Suspension is a suspend that holds processes.
type Suspension struct {
	Status
	Conflict error // says that it is in the way, and how the processes are resumed
}

// SuspendedBelow returns the suspends that hold living processes of the tree below root.
func SuspendedBelow(runDir string, root int) (found []Suspension, err error) {
	tree, _ := proc.Tree(root) // it may have ended
	all, err := journal.List(runDir)
	for _, s := range all {
		isOurs := func(m journal.Member) bool { return slices.Contains(tree, m.PID) && m.Ident.Alive() }
		if s.Suspended() && slices.ContainsFunc(s.Members, isOurs) {
			found = append(found, Suspension{statusOf(s), s.Conflict()})
		}
	}
	return found, err
}

func statusesOf(all []*journal.Session) []Status {
	statuses := make([]Status, len(all)) // not nil: null is no list in JSON
	for i, s := range all {
		statuses[i] = statusOf(s)
	}
	return statuses
}

// statusOf says how a session stands.
func statusOf(s *journal.Session) Status {
	status := Status{
		Session: s.Name(), Kind: Kind(s.Kind), Begun: s.Created, CriuPID: s.Criu.PID, ImageDir: s.ImageDir,
		Processes: make([]StatusProcess, len(s.Members)), Step: string(s.Step), Outcome: Outcome(s.Outcome), Message: s.Message,
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
	if s.Suspended() && len(s.Members) > 0 && len(session.OutcomeOf(s.Members).Alive) == 0 {
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
