package commit

import "slices"

// The world of the checker: two hosts, a network, a person. A copy is what is physically there;
// a state is what the journal says.

type copyOf uint8

const (
	none copyOf = iota // not made yet, or killed
	held
	runs
)

// phase is where the program that began the migration is, on its side.
type phase uint8

const (
	working phase = iota // before it has a held copy
	holding              // it has one: the source waits for ready, the destination is about to report it
	told                 // it has answered an event since; it holds or makes no copy any more
	gone
)

// maxSteps is the most steps that an answer has: the write, and three actions.
const maxSteps = 4

// steps are what a program still has to do, one after the other; it can be killed before each.
type steps [maxSteps]step

func (s *steps) next() step {
	first := s[0]
	copy(s[:], s[1:])
	s[maxSteps-1] = 0
	return first
}

func (s *steps) idle() bool { return *s == steps{} }

// step is a write of a state to the disk, or an action: an index into vocabulary. 0 is neither.
type step uint8

// vocabulary has the states first.
var vocabulary = []string{
	"",
	string(Undecided), string(Back), string(End), string(Receiving), string(Promised), string(Go), string(Dropped),
	string(BringBack), string(KillCopy), string(LetRun), string(Close),
	string(SayReady), string(SayCommit), string(SayAbort), string(SayRunning), string(SayEnded),
}

const firstAction step = 8

func stepOf(name string) step { return step(slices.Index(vocabulary, name)) }

// The steps that the checker knows by name.
var (
	undecided, back, end             = stepOf(string(Undecided)), stepOf(string(Back)), stepOf(string(End))
	receiving, promised, goes, drops = stepOf(string(Receiving)), stepOf(string(Promised)), stepOf(string(Go)), stepOf(string(Dropped))
	bringBack, killCopy, letRun      = stepOf(string(BringBack)), stepOf(string(KillCopy)), stepOf(string(LetRun))
	closes                           = stepOf(string(Close))
	sayReady, sayCommit, sayAbort    = stepOf(string(SayReady)), stepOf(string(SayCommit)), stepOf(string(SayAbort))
	sayRunning, sayEnded             = stepOf(string(SayRunning)), stepOf(string(SayEnded))
)

// maxHelpers is how many watchers, recovers and requests to settle can be at work on a record at
// the same time, beside the program. One after the other there can be any number of them.
const maxHelpers = 2

// host is one side.
type host struct {
	state     step // on disk
	copy      copyOf
	closed    bool // on disk
	destroyed bool
	phase     phase
	program   steps
	helper    [maxHelpers]steps
}

// locked reports whether somebody holds the record's lock: who has decided and not yet written.
func (h *host) locked() bool {
	for _, at := range []*steps{&h.program, &h.helper[0], &h.helper[1]} {
		for _, one := range at {
			if 0 < one && one < firstAction {
				return true
			}
		}
	}
	return false
}

// destroy ends everything that is not elsewhere.
func (h *host) destroy() {
	*h = host{state: h.state, closed: h.closed, destroyed: true, phase: gone}
}

// message is something that was said. What was said once can arrive at any later time, in any
// order, any number of times, or get lost.
type message uint8

const (
	saidReady message = 1 << iota
	saidCommit
	saidAbort
	saidRunning
	saidEnded
	saidUnknown
)

type world struct {
	source, destination host
	network             message
	stale               bool // the source's copy ran on after it had been dumped
	saw                 step // what a person has decided upon: goes, drops, or nothing yet
}

func start() world {
	return world{
		source:      host{state: undecided, copy: runs},
		destination: host{state: receiving},
	}
}

// sorted returns the world with its helpers in a fixed order, the busy ones first, for it does not
// matter which is which.
func (w world) sorted() world {
	for _, h := range []*host{&w.source, &w.destination} {
		if slices.Compare(h.helper[1][:], h.helper[0][:]) > 0 {
			h.helper[0], h.helper[1] = h.helper[1], h.helper[0]
		}
	}
	return w
}

// carryOut does one step of a program or a helper of this side.
func (w *world) carryOut(h *host, at *steps) {
	one := at.next()
	if one < firstAction {
		h.state = one
		return
	}
	switch {
	case one == closes:
		h.closed = true
	case one == sayReady:
		w.network |= saidReady
	case one == sayCommit:
		w.network |= saidCommit
	case one == sayAbort:
		w.network |= saidAbort
	case one == sayRunning:
		w.network |= saidRunning
	case one == sayEnded:
		w.network |= saidEnded
	case h.closed: // nothing is done to the copy any more
	case one == killCopy:
		h.copy = none
	case one == bringBack && h.copy == held:
		h.copy, w.stale = runs, true
	case one == letRun && h.copy == held:
		h.copy = runs
	}
}
