package commit

import (
	"fmt"
	"slices"
)

// protocol is what the checker checks: this package, or a broken variant of it. An answer has the
// write of the state among its steps, so that a variant can do something before it.
type protocol struct {
	source      func(SourceState, Event) (answer, error)
	destination func(DestinationState, Event) (answer, error)
	unlocked    bool // the lock is not held from the read of the state to its write
	closesEarly bool // a helper closes beside the program that began
}

// answer is what a side does upon an event. An element is a state to write, or an Action.
type answer []any

// built is the protocol as this package has it.
func built() protocol {
	return protocol{
		source: func(s SourceState, e Event) (answer, error) {
			next, do, err := s.HandleEvent(e)
			return answerOf(next, next != s, do), err
		},
		destination: func(d DestinationState, e Event) (answer, error) {
			next, do, err := d.HandleEvent(e)
			return answerOf(next, next != d, do), err
		},
	}
}

func answerOf(next any, changed bool, do []Action) answer {
	var a answer
	if changed {
		a = append(a, next)
	}
	for _, one := range do {
		a = append(a, one)
	}
	return a
}

func (a answer) steps() steps {
	var s steps
	for i, one := range a {
		s[i] = stepOf(fmt.Sprint(one))
	}
	return s
}

// on has a program or a helper of a side answer an event: it takes the lock, decides, and has the
// write as its first step. It returns false if another holds the lock.
func (p protocol) on(h *host, at *steps, e Event) (bool, error) {
	if h.locked() && !p.unlocked {
		return false, nil
	}
	var a answer
	var err error
	if h.state <= end {
		a, err = p.source(SourceState(vocabulary[h.state]), e)
	} else {
		a, err = p.destination(DestinationState(vocabulary[h.state]), e)
	}
	if at != &h.program && h.phase != gone && !p.closesEarly {
		a = slices.DeleteFunc(a, func(one any) bool { return one == Close })
	}
	*at = a.steps()
	return true, err
}
