package commit

// DestinationState is what the destination's journal holds.
type DestinationState string

// The states of a destination. Go and Dropped are final.
const (
	Receiving DestinationState = "receiving" // whatever goes wrong, the copy is ended
	Promised  DestinationState = "promised"  // the copy is complete, and held until the source or a person decides
	Go        DestinationState = "go"        // the job stays here
	Dropped   DestinationState = "dropped"   // the copy here is ended
)

// Destination is the destination's side of one migration.
type Destination struct {
	State DestinationState `json:"state"`
}

// HandleEvent answers an event. The next state must be on disk before the first action is begun. For a
// destination that has promised, many events change nothing and ask for nothing.
func (d Destination) HandleEvent(e Event) (next Destination, do []Action, err error) {
	state, possible := d.decide(e)
	if !possible {
		return d, nil, &ImpossibleError{Side: "destination", State: string(d.State), Event: e}
	}
	next = Destination{state}
	return next, next.actions(e), nil
}

// decide returns the next state, and whether the event can happen.
func (d Destination) decide(e Event) (next DestinationState, possible bool) {
	switch d.State {
	case Receiving:
		switch e {
		case Complete:
			return Promised, true
		case Abort, Failed, ControlLost, ProgramGone, Recover:
			return Dropped, true
		}
	case Promised:
		switch e {
		case Commit, Take:
			return Go, true
		case Abort, Drop:
			return Dropped, true
		case Failed, ControlLost, ProgramGone, Recover:
			return Promised, true
		}
	case Go:
		switch e {
		case Commit, Take, Failed, ControlLost, ProgramGone, Recover:
			return Go, true
		}
	case Dropped:
		switch e {
		case Complete, // by a program that did not know yet
			Abort, Drop, Failed, ControlLost, ProgramGone, Recover:
			return Dropped, true
		}
	}
	return d.State, false
}

// actions returns what a state asks for. The source is told only what has been done.
func (d Destination) actions(e Event) []Action {
	tell := e == Commit || e == Abort || e == Complete || e == Failed // else nobody listens
	switch {
	case d.State == Promised && e == Complete:
		return []Action{SayReady}
	case d.State == Go && tell:
		return []Action{LetRun, SayRunning, Close}
	case d.State == Go:
		return []Action{LetRun, Close}
	case d.State == Dropped && tell:
		return []Action{KillCopy, SayEnded, Close}
	case d.State == Dropped:
		return []Action{KillCopy, Close}
	}
	return nil
}
