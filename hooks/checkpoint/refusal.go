package checkpoint

import (
	"time"

	"cucriu/hooks/preflight"
	"cucriu/internal/core/journal"
)

// Refusal is a dump or a restore that was refused before it had a session. It is kept until the same one is begun, or
// for a week, or until there are too many newer ones.
type Refusal struct {
	Kind     Kind      `json:"kind"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Times    int       `json:"times"` // how often it was refused for the same reasons
	CriuPID  int       `json:"criu_pid,omitempty"`
	RootPID  int       `json:"root_pid,omitempty"` // of the tree to dump; 0 of a restore
	Root     *Started  `json:"root,omitempty"`     // nil if there was no such process
	Process  string    `json:"process,omitempty"`  // the root's name
	ImageDir string    `json:"image_dir,omitempty"`
	// Findings are the errors that refused it. If there are none, Message says why.
	Findings preflight.Findings `json:"findings,omitempty"`
	Message  string             `json:"message,omitempty"`
	// Text says why it was refused, and what to do, in a line for each reason.
	Text string `json:"-"`
}

// Started names one incarnation of a process: a pid may later be another process's.
type Started struct {
	PID          int    `json:"pid"`
	StartTime    uint64 `json:"start_time"`              // clock ticks since the host booted
	PIDNamespace uint64 `json:"pid_namespace,omitempty"` // its inode; 0 if that cannot be read
}

// Refusals returns the refusals that a run directory keeps, the oldest first.
func Refusals(runDir string) ([]Refusal, error) {
	kept, err := journal.Refusals(runDir)
	all := make([]Refusal, len(kept)) // not nil: null is no list in JSON
	for i, r := range kept {
		all[i] = Refusal{
			Kind(r.Kind), r.First, r.Last, r.Times, r.CriuPID, r.RootPID, (*Started)(r.Root), r.Process, r.ImageDir,
			r.Findings, r.Message, r.Text(),
		}
	}
	return all, err
}
