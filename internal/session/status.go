package session

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"cucriu/internal/journal"
	"cucriu/internal/timeline"
)

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
	// NotBack says that the last try to bring the job back has failed. Message says why.
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
		status.ImageDir = s.CommittedDir
		status.Message = strings.ReplaceAll(s.Message, s.ImageDir, s.CommittedDir)
	}
	if s.Kind == journal.KindDump && s.Held() && s.Message == "" {
		status.Message = fmt.Sprintf("on its way to %s, and stopped until it is decided where it goes on (migration %s)", s.Hold.Peer, s.Hold.ID)
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
	if s.CommittedDir == "" || s.Kind != journal.KindDump {
		return false
	}
	switch s.Step {
	case journal.StepDumped, journal.StepTransferring:
		return true
	case journal.StepPublish: // it may be under way
		_, err := os.Stat(s.ImageDir)
		return errors.Is(err, os.ErrNotExist)
	}
	return false
}
