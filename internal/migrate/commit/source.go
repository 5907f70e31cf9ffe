package commit

// SourceState is what the source's journal holds.
type SourceState string

// The states of a source. Back and End are final.
const (
	Undecided SourceState = "undecided" // the job may be held, and is brought back unless End comes first
	Back      SourceState = "back"      // the job stays here
	End       SourceState = "end"       // the job goes on there, and the copy here is ended: the commit point
)

// HandleEvent answers an event. The next state must be on disk before the first action is begun.
func (s SourceState) HandleEvent(e Event) (next SourceState, do []Action, err error) {
	next = s.decide(e)
	do = next.actions(e)
	if do == nil {
		return s, nil, &ImpossibleError{Side: "source", State: string(s), Event: e}
	}
	return next, do, nil
}

// decide returns the next state. Of what can happen to a source that is undecided, only ready
// leads to End.
func (s SourceState) decide(e Event) SourceState {
	switch {
	case s != Undecided:
		return s
	case e == Ready:
		return End
	}
	return Back
}

// actions returns what a decision asks for, nil if the event cannot happen. The copy comes first:
// it may have been stopped, or left alive, by a program that did not know of the decision or was
// killed after it.
func (s SourceState) actions(e Event) []Action {
	switch s {
	case Back:
		switch e {
		case Ready, Failed, ControlLost, Recover:
			return []Action{BringBack, SayAbort}
		case ProgramGone: // a watcher cannot reach the destination
			return []Action{BringBack}
		case Ended, Unknown:
			return []Action{BringBack, Close}
		}
	case End:
		switch e {
		case Ready, Failed, ControlLost, Recover:
			return []Action{KillCopy, SayCommit}
		case ProgramGone, Unknown: // not closed: nobody has said that the job runs
			return []Action{KillCopy}
		case Running:
			return []Action{KillCopy, Close}
		}
	}
	return nil
}
