package commit

// person is who may decide at the destination.
type person uint8

const (
	nobody person = iota
	honest        // keeps to WhenToTake and WhenToDrop
	liar          // decides without having looked
)

// move is one thing that can happen next.
type move struct {
	where, what string
	after       world
	err         error // of HandleEvent: an event that cannot happen
	// fault: a crash, a loss, or a destroyed host. It happens any number of times, and may happen
	// never: nothing relies on it.
	fault bool
	// byPerson: nothing relies on a person either, unless the source's host is destroyed.
	byPerson bool
}

// model has the moves of a world.
type model struct {
	protocol
	person  person
	helpers int  // at the same time, at most maxHelpers
	destroy bool // hosts can be destroyed
}

// moves appends all that can happen next to the list.
func (m model) moves(w world, all []move) []move {
	var after world
	add := func(v move, change func(*world) (bool, error)) {
		after = w
		did, err := change(&after)
		if v.after, v.err = after.sorted(), err; did && (err != nil || v.after != w) {
			all = append(all, v)
		}
	}
	m.local(add, "source", func(w *world) *host { return &w.source })
	m.local(add, "destination", func(w *world) *host { return &w.destination })
	m.work(w, add)
	m.deliver(w, add)
	m.decide(w, add)
	return all
}

type adder func(move, func(*world) (bool, error))

// local adds what happens on one side without the other: a step of somebody, a kill before it,
// deadlines, a watcher, a recover, the end of the host.
func (m model) local(add adder, name string, side func(*world) *host) {
	add(move{where: name, what: "program: step"}, func(w *world) (bool, error) {
		h := side(w)
		did := !h.program.idle()
		w.carryOut(h, &h.program)
		return did, nil
	})
	add(move{where: name, what: "program: killed", fault: true}, func(w *world) (bool, error) {
		h := side(w)
		h.phase, h.program = gone, steps{}
		return true, nil
	})
	add(move{where: name, what: "program: exits"}, func(w *world) (bool, error) {
		h := side(w)
		did := h.phase == told && h.program.idle() && h.state != undecided
		h.phase = gone
		return did, nil
	})
	for _, e := range []Event{Failed, ControlLost} {
		add(move{where: name, what: string(e)}, func(w *world) (bool, error) {
			return m.tellProgram(side(w), e)
		})
	}
	for i := range m.helpers {
		add(move{where: name, what: "helper: step"}, func(w *world) (bool, error) {
			h := side(w)
			did := !h.helper[i].idle()
			w.carryOut(h, &h.helper[i])
			return did, nil
		})
		add(move{where: name, what: "helper: killed", fault: true}, func(w *world) (bool, error) {
			side(w).helper[i] = steps{}
			return true, nil
		})
	}
	add(move{where: name, what: "recover"}, func(w *world) (bool, error) {
		h := side(w)
		if h.closed {
			return false, nil
		}
		return m.tellHelper(h, Recover)
	})
	add(move{where: name, what: "watcher"}, func(w *world) (bool, error) {
		h := side(w)
		if h.closed || h.phase != gone {
			return false, nil
		}
		return m.tellHelper(h, ProgramGone)
	})
	add(move{where: name, what: "destroyed", fault: true}, func(w *world) (bool, error) {
		side(w).destroy()
		return m.destroy, nil
	})
}

// tellProgram gives an event to the program of a side, tellHelper to another one.
func (m model) tellProgram(h *host, e Event) (bool, error) {
	if h.phase == gone || !h.program.idle() {
		return false, nil
	}
	did, err := m.on(h, &h.program, e)
	h.phase = told
	return did, err
}

func (m model) tellHelper(h *host, e Event) (bool, error) {
	for i := range m.helpers {
		if h.helper[i].idle() && !h.destroyed {
			return m.on(h, &h.helper[i], e)
		}
	}
	return false, nil
}

// work adds the work proper. It does not look at the state, as somebody else may have decided
// since it began.
func (m model) work(w world, add adder) {
	if w.source.phase == working && w.source.program.idle() {
		add(move{where: "source", what: "the copy is held"}, func(w *world) (bool, error) {
			w.source.phase = holding
			if w.source.copy == runs {
				w.source.copy = held
			}
			return true, nil
		})
	}
	// The destination has nothing to make a copy from before the source has dumped it.
	if w.destination.phase == working && w.destination.program.idle() && w.source.phase != working {
		add(move{where: "destination", what: "the copy is made"}, func(w *world) (bool, error) {
			w.destination.phase, w.destination.copy = holding, held
			return true, nil
		})
	}
	if w.destination.phase == holding {
		add(move{where: "destination", what: "complete"}, func(w *world) (bool, error) {
			return m.tellProgram(&w.destination, Complete)
		})
	}
}

// deliver adds the arrival of messages, at the living program or at another one that asked or is
// asked over a new connection, and their loss.
func (m model) deliver(w world, add adder) {
	arrive := func(said message, e Event, side func(*world) *host) {
		if w.network&said == 0 {
			return
		}
		add(move{where: string(e), what: "reaches the program"}, func(w *world) (bool, error) {
			return m.tellProgram(side(w), e)
		})
		if e != Ready { // which nobody asks for
			add(move{where: string(e), what: "over a new connection"}, func(w *world) (bool, error) {
				return m.tellHelper(side(w), e)
			})
		}
		add(move{where: string(e), what: "is lost", fault: true}, func(w *world) (bool, error) {
			w.network &^= said
			return true, nil
		})
	}
	source := func(w *world) *host { return &w.source }
	destination := func(w *world) *host { return &w.destination }
	arrive(saidReady, Ready, source)
	arrive(saidRunning, Running, source)
	arrive(saidEnded, Ended, source)
	arrive(saidUnknown, Unknown, source)
	arrive(saidCommit, Commit, destination)
	arrive(saidAbort, Abort, destination)
	if w.destination.destroyed && w.network&(saidCommit|saidAbort) != 0 {
		add(move{where: "destination", what: "knows of nothing"}, func(w *world) (bool, error) {
			w.network |= saidUnknown
			return true, nil
		})
	}
}

// decide adds what a person does: looks at the source, and at any later time decides.
func (m model) decide(w world, add adder) {
	look := func(seen step) {
		add(move{where: "a person looks, and may", what: vocabulary[seen], byPerson: true}, func(w *world) (bool, error) {
			w.saw = seen
			return true, nil
		})
	}
	s := &w.source
	if m.person == liar || m.person == honest && (s.destroyed || s.state == end && s.copy == none) {
		look(goes)
	}
	if m.person == liar || m.person == honest && !s.destroyed && s.state == back && s.copy == runs {
		look(drops)
	}
	if w.saw != 0 && w.destination.state == promised {
		says := map[step]Event{goes: Take, drops: Drop}[w.saw]
		add(move{where: "a person says", what: string(says), byPerson: true}, func(w *world) (bool, error) {
			return m.tellHelper(&w.destination, says)
		})
	}
}
