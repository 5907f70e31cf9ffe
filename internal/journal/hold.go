package journal

import (
	"fmt"

	"cucriu/internal/proc"
)

// Decision says what is to become of processes that a session holds.
type Decision string

// The decisions.
const (
	DecisionNone Decision = ""
	// DecisionGo lets the processes here run.
	DecisionGo Decision = "go"
	// DecisionEnd ends the processes here: the job goes on elsewhere, or not at all.
	DecisionEnd Decision = "end"
	// DecisionWait is no decision, and only for [Hold.IfAbandoned]: the processes stay held until
	// somebody decides.
	DecisionWait Decision = "wait"
)

// Hold says that a session does not end with its criu. Its processes stay held, a dump's with their GPU
// state in the image, a restore's with it back on the GPU, until the holder decides. The decision is on
// disk before anything is done about it.
type Hold struct {
	ID     string     `json:"id"`     // of what holds the processes: a migration
	Peer   string     `json:"peer"`   // where the other copy is, for messages
	Holder proc.Ident `json:"holder"` // the program that decides
	// IfAbandoned is what happens if the holder ends without a decision.
	IfAbandoned Decision `json:"if_abandoned"`
	Decision    Decision `json:"decision,omitempty"`
	// KeepsConnections says that the TCP connections of a dumped job go on elsewhere, with the job's
	// address: no packet reaches them here before the processes have ended.
	KeepsConnections bool `json:"keeps_connections,omitempty"`
	// Told says that the other side knows the decision. Until then it asks, or has to be told.
	Told bool `json:"told,omitempty"`
	// Sockets are the UNIX sockets of the job at its source that have a second name until it is known
	// where the job goes on.
	Sockets []Socket `json:"sockets,omitempty"`
}

// Socket is a UNIX socket that is bound to a path.
type Socket struct {
	Path  string `json:"path"`
	Inode uint64 `json:"inode"`
}

// Undecided reports whether there is a hold and no decision yet.
func (h *Hold) Undecided() bool { return h != nil && h.Decision == DecisionNone }

func (h *Hold) validate() error {
	switch h.IfAbandoned {
	case DecisionGo, DecisionEnd, DecisionWait:
	default:
		return fmt.Errorf("its hold is to be %q if it is abandoned", h.IfAbandoned)
	}
	switch h.Decision {
	case DecisionNone, DecisionGo, DecisionEnd:
		return nil
	}
	return fmt.Errorf("its hold has the decision %q", h.Decision)
}

// Held reports whether the session's processes are held now, and wait for a decision.
func (r *Record) Held() bool {
	if r.Outcome != "" || !r.Hold.Undecided() {
		return false
	}
	if r.Kind == KindRestore {
		return r.Restored
	}
	return r.Step == StepDumped
}
