package commit

import "fmt"

// Event is something that a side must answer.
type Event string

// What the other side said, over any connection.
const (
	Ready   Event = "ready"   // the destination has promised; only the program that began hears it
	Commit  Event = "commit"  // the source has ended its copy
	Abort   Event = "abort"   // the source goes on with its own copy
	Running Event = "running" // the destination lets its copy run
	Ended   Event = "ended"   // the destination has ended its copy, or will never have one
	Unknown Event = "unknown" // the destination has no record of this migration, and no copy
)

// What happened on this side.
const (
	Complete    Event = "complete"     // the destination's copy is complete, and held
	Failed      Event = "failed"       // a step failed or took too long, or the user gave up; the other side can be told
	ControlLost Event = "control lost" // the connection to the other side ended, or something could not be said
	ProgramGone Event = "program gone" // the watcher saw the program of this side end
	Recover     Event = "recover"      // somebody is to bring this side to an end
)

// What a person decides at a destination in doubt: it has promised, and its program has gone or has
// lost control.
const (
	Take Event = "take"
	Drop Event = "drop"
)

// The rules for a person who decides. If they are not kept, there may be two copies, or none.
const (
	WhenToTake = "take it only if the source's status says that its copy has ended, or if the source's host is destroyed (or, for a process tree, was rebooted)"
	WhenToDrop = "drop it only if the source's status says that the job keeps running there"
)

// Action is something to do once the state is on disk.
type Action string

const (
	// BringBack lets the source's copy run again. It does nothing if the copy runs.
	BringBack Action = "bring back"
	// KillCopy kills the copy of this side, and returns when no process of it is left.
	KillCopy Action = "kill copy"
	// LetRun lets the destination's copy run. It does nothing if the copy runs or has ended.
	LetRun Action = "let run"

	// What is said to the other side goes over the control connection or, if that is lost, over a
	// new one. If it cannot be said, or no answer comes, the event is ControlLost. An answer to a
	// request goes to who asked.

	SayReady   Action = "say ready"
	SayCommit  Action = "say commit"
	SayAbort   Action = "say abort"
	SayRunning Action = "say running"
	SayEnded   Action = "say ended"

	// Close marks the record as over: from then on BringBack, KillCopy and LetRun do nothing, for
	// the job may be in the hands of another operation. The destination keeps the record to answer
	// with.
	//
	// Who is not the program that began this side closes only if that one had gone before the first
	// of these actions was begun. Otherwise it skips Close, for that program could still stop or
	// make a copy after BringBack or KillCopy. It then closes by itself, or a later recover does.
	Close Action = "close"
)

// ImpossibleError is an event that cannot happen in a state. Nothing is to be done then. Behind it
// is a fault of this program, a lost journal, or a person who did not keep to [WhenToTake] or
// [WhenToDrop]; or an abort of a source that was destroyed after it had been said.
type ImpossibleError struct {
	Side  string // source or destination
	State string
	Event Event
}

func (e *ImpossibleError) Error() string {
	return fmt.Sprintf("%q cannot happen to the %s of a migration in state %q", e.Event, e.Side, e.State)
}
