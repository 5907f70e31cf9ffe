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

// HandleEvent answers an event. The next state must be on disk before the first action is begun. For a
// destination that has promised, many events change nothing and ask for nothing.
func (d DestinationState) HandleEvent(e Event) (next DestinationState, do []Action, err error) {
	next, possible := d.decide(e)
	if !possible {
		return d, nil, &ImpossibleError{Side: "destination", State: string(d), Event: e}
	}
	return next, next.actions(e), nil
}

// decide returns the next state, and whether the event can happen.
func (d DestinationState) decide(e Event) (next DestinationState, possible bool) {
	switch d {
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
	return d, false
}

// actions returns what a state asks for. The source is told only what has been done.
func (d DestinationState) actions(e Event) []Action {
	tell := e == Commit || e == Abort || e == Complete || e == Failed // else nobody listens
	switch {
	case d == Promised && e == Complete:
		return []Action{SayReady}
	case d == Go && tell:
		return []Action{LetRun, SayRunning, Close}
	case d == Go:
		return []Action{LetRun, Close}
	case d == Dropped && tell:
		return []Action{KillCopy, SayEnded, Close}
	case d == Dropped:
		return []Action{KillCopy, Close}
	}
	return nil
}
