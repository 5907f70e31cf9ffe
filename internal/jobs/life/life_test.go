package life

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestAllOrdersOfEvents searches every state that can be reached by any events in any order, without
// a bound on their number.
func TestAllOrdersOfEvents(t *testing.T) {
	c := search(State.On)
	t.Logf("%d worlds, %d moves", len(c.worlds), c.moves)
	if c.broken != "" {
		t.Error(c)
	}
	if !slices.ContainsFunc(c.worlds, func(w world) bool { return w.state.Phase == Over && w.made }) {
		t.Error("no way leads to a last checkpoint")
	}
}

// rule is what one test breaks: it may change the answer to an event.
type rule func(s State, e Event, next State, do []Action) (State, []Action)

// TestTheSearchFindsWhatIsBroken shows that it can fail, and why each rule is there.
func TestTheSearchFindsWhatIsBroken(t *testing.T) {
	drop := func(what Action) rule {
		return func(_ State, _ Event, next State, do []Action) (State, []Action) {
			return next, slices.DeleteFunc(slices.Clone(do), func(a Action) bool { return a == what })
		}
	}
	for name, broken := range map[string]struct {
		rule rule
		says string
	}{
		"a request is forgotten":   {drop(Answer), "without an answer"},
		"a refusal is forgotten":   {drop(Refuse), "without an answer"},
		"nobody waits for the end": {drop(ReadExit), "is under way, and not"},
		"a failed stop ends it": {func(s State, e Event, next State, do []Action) (State, []Action) {
			if s.Doing == Last && s.Asked == AskStop && !s.Leave && !e.Gone && !e.OK && e.Kind == Done {
				s.Asked = ""
				return s.end(Answer, EndLeave)
			}
			return next, do
		}, "a job that lives is killed"},
		"a fence that was not raised": {func(s State, e Event, next State, do []Action) (State, []Action) {
			if s.Doing == "" && s.Phase == Running && e.Kind == Tick {
				return s.end(EndFenced)
			}
			return next, do
		}, "a job that lives is killed"},
		"criu is taken to be stuck at once": {func(s State, e Event, next State, do []Action) (State, []Action) {
			if e.Kind == Tick && e.Exiting && next.Stuck == 1 {
				return next, []Action{Kill}
			}
			return next, do
		}, "a job that lives is killed"},
		"a paused job is dumped": {func(s State, e Event, next State, do []Action) (State, []Action) {
			if e.Kind == Ask && e.Op == AskCheckpoint && s.Idle() {
				s.Asked = e.Op
				return s.do(Checkpoint)
			}
			return next, do
		}, "of a paused job"},
		"a job that moved begins again": {func(s State, e Event, next State, do []Action) (State, []Action) {
			if s.Phase == Undecided && e.Kind == MoveLeft {
				next.Phase = Starting
				return next.do(Begin)
			}
			return next, do
		}, "two copies"},
		"a moved job is not ended first": {func(s State, e Event, next State, do []Action) (State, []Action) {
			if s.Doing == Last && s.Asked == AskMove && e.Kind == Done && !e.OK && !e.Gone && !s.Gone {
				return State{}.do(AwaitMove, Answer)
			}
			return next, do
		}, "while the job is here"},
		"two things at once": {func(s State, e Event, next State, do []Action) (State, []Action) {
			if s.Phase == Running && e.Kind == Preempt && !s.Leave && s.Doing != "" && s.Doing != Last {
				next.Tries++
				return next.do(Last)
			}
			return next, do
		}, "beside"},
		"it tries for ever": {func(s State, e Event, next State, do []Action) (State, []Action) {
			next.Tries = min(next.Tries, 1)
			return next, do
		}, "comes round again"},
		"a job that stays is noted to leave": {drop(Stay), "before it is noted that the job stays"},
		"it is answered before it is noted": {func(s State, e Event, next State, do []Action) (State, []Action) {
			if i := slices.Index(do, Stay); i >= 0 {
				do = append(slices.Delete(slices.Clone(do), i, i+1), Stay)
			}
			return next, do
		}, "before it is noted that the job stays"},
		"a job that leaves is not noted": {drop(Hasten), "is not noted to leave"},
		"a job that has ended is left in silence": {func(s State, e Event, next State, do []Action) (State, []Action) {
			if s.Phase == Running && slices.Contains(do, EndAsTold) {
				return next, []Action{EndLeave}
			}
			return next, do
		}, "nobody is told why"},
		"a finished job is run again": {func(s State, e Event, next State, do []Action) (State, []Action) {
			if s.Doing == Last && e.Well && !s.Leave {
				return s.end(EndLeave)
			}
			return next, do
		}, "a job that has finished"},
		"a job that was asked to end is started again": {func(s State, e Event, next State, do []Action) (State, []Action) {
			if s.Phase == Ending && e.Again {
				return State{Phase: Starting}.do(Begin, Restart)
			}
			return next, do
		}, "was asked to end, and is started again"},
		"a preempted job counts as finished": {func(s State, e Event, next State, do []Action) (State, []Action) {
			if s.Phase == Ending && e.Kind == ExitedWell {
				return s.end(EndJob)
			}
			return next, do
		}, "taken for finished"},
	} {
		t.Run(name, func(t *testing.T) {
			c := search(func(s State, e Event) (State, []Action) {
				next, do := s.On(e)
				return broken.rule(s, e, next, do)
			})
			t.Log(c)
			if c.broken == "" || !strings.Contains(c.broken, broken.says) {
				t.Errorf("found %q in %d worlds, want %q", c.broken, len(c.worlds), broken.says)
			}
		})
	}
}

// job is what there is of the job on this host.
type job uint8

const (
	unknown job = iota // a supervisor before us may have left it running
	none
	runs
	paused
	ended // its root process
)

// world is a state, and what is true outside of the supervisor.
type world struct {
	state   State
	job     job
	doing   Action // what is under way
	open    bool   // a request waits
	told    bool   // a signal said that the job is to leave
	grace   bool   // the time until TimeUp runs
	pressed bool   // a second signal came, or the time is up
	fenced  bool
	made    bool // a last checkpoint that ended the job
	left    bool // the job has moved
	exits   int  // looks in a row at a root process that is about to end, as far as they count
	news    bool // the end of the root process is yet to be told
	well    bool // the job has ended as it may by a signal to leave
	leaving bool // it is noted that the job is to leave
	done    bool // the job has finished, and nobody had told it to leave
	asked   bool // the job got a signal that asks it to end
	broken  string
}

func (w *world) fail(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
	}
}

func (w *world) lives() bool { return w.job == runs || w.job == paused }

// end ends what there is of the job, for a reason.
func (w *world) end(why Action, may bool) {
	if w.lives() && !may {
		w.fail("%s: a job that lives is killed", why)
	}
	if w.lives() {
		w.job, w.news = ended, true
	}
}

// do executes an action.
func (w *world) do(a Action) {
	switch a {
	case AwaitMove, Begin, Tidy, Look, Checkpoint, Pause, Unpause, Last, Wait, Prune, EndSandbox, ReadExit, Listen:
		if w.doing != "" {
			w.fail("%s beside %s", a, w.doing)
		}
		w.doing = a
	}
	if slices.Contains([]Action{Look, Checkpoint, Pause, Last}, a) && w.job == paused {
		w.fail("%s of a paused job", a)
	}
	if a == Begin && w.job == ended && (w.told || w.done || w.asked) {
		w.fail("%s: the job was asked to end, and is started again", a)
	}
	switch a {
	case Begin, AwaitMove:
		if w.lives() {
			w.fail("%s while the job is here", a)
		}
		if w.left {
			w.fail("%s: two copies", a)
		}
		w.leaving = false // of another sandbox, or of this one without whoever noted it
	case Answer, Refuse, AnswerAtEnd:
		if !w.open {
			w.fail("%s of no request", a)
		}
		if w.lives() && w.leaving && w.state.Idle() && !w.state.Leave {
			w.fail("%s before it is noted that the job stays", a)
		}
		w.open = false
	case StartGrace:
		w.grace = true
	case Last, Hasten:
		w.leaving = true
	case Stay:
		w.leaving = false
	case Kill:
		w.end(a, w.told && w.pressed || w.exits >= maxStuck)
	case KillRest, EndJob, EndAsTold, EndMoved, EndUndecided, EndFinished:
		w.end(a, false)
	case EndSandbox:
		w.end(a, w.made)
	case EndLeave, EndGivenUp:
		w.end(a, w.told || w.made)
	case EndFenced:
		w.end(a, w.fenced)
	}
	if w.done && !w.told && (a == EndSandbox || a == EndLeave) {
		w.fail("%s: a job that has finished is run again", a)
	}
	if a == EndJob && w.told && w.well {
		w.fail("%s: a job that was told to leave is taken for finished", a)
	}
}

type on func(State, Event) (State, []Action)

// happen lets an event happen.
func (w world) happen(on on, e Event) world {
	var do []Action
	before := w.state
	w.state, do = on(before, e)
	tells := before.Tries > 0 || before.Doing == Last || before.Doing == Unpause || slices.Contains(do, TellNoLast)
	if slices.Contains(do, EndLeave) && !tells {
		w.fail("the job leaves without a last checkpoint, and nobody is told why")
	}
	for _, a := range do {
		w.do(a)
	}
	if e.Kind == Quit && (before.Phase == Ending || slices.Contains(do, Pass) && !before.Paused) {
		w.asked = true
	}
	if w.state.Doing != w.doing && w.state.Phase != Over {
		w.fail("%s is under way, and not %q", w.doing, w.state.Doing)
	}
	switch running := w.state.Phase == Running && w.lives(); {
	case running && w.state.Leave && !w.leaving:
		w.fail("a job that leaves is not noted to leave")
	case running && w.state.Idle() && !w.state.Leave && w.leaving:
		w.fail("a job is noted to leave, and stays")
	}
	if w.open != (w.state.Asked != "") {
		w.fail("a request is left without an answer, or is not there")
	}
	return w
}

// outcomes are the events by which what is under way ends, and what is true then.
func (w world) outcomes() (all []outcome) {
	end := func(e Event, change func(*world)) { all = append(all, outcome{e, change}) }
	is := func(j job) func(*world) {
		return func(w *world) {
			if w.job != ended {
				w.job = j
			}
		}
	}
	ok, failed := Event{Kind: Done, OK: true}, Event{Kind: Done}
	switch w.doing {
	case AwaitMove:
		end(Event{Kind: MoveStays}, nil)
		end(Event{Kind: MoveLeft}, func(w *world) { w.left = true })
		end(Event{Kind: Failed}, nil)
	case Begin:
		here := func(j job, news bool) func(*world) {
			return func(w *world) { // signals that were kept come again
				w.job, w.news, w.told, w.pressed, w.well, w.asked = j, news, false, w.state.Hurry, false, false
			}
		}
		end(Event{Kind: Here}, here(runs, false))
		end(Event{Kind: Here, Paused: true}, here(paused, false))
		end(Event{Kind: Here}, here(ended, true))
		end(Event{Kind: Finished}, func(w *world) { w.job = none })
		end(Event{Kind: Failed}, nil)
	case Pause:
		end(Event{Kind: Done, OK: true, Paused: true}, is(paused))
		end(Event{Kind: Done, Paused: true}, is(paused))
		end(failed, nil)
	case Unpause:
		end(ok, is(runs))
		end(failed, nil)
	case Last:
		if w.job != ended {
			end(ok, func(w *world) { w.job, w.made, w.news = ended, true, true })
			end(failed, nil)
		}
		gone := func(w *world) { w.job, w.news = ended, w.news || w.job != ended }
		end(Event{Kind: Done, Gone: true}, gone)
		if w.state.Asked != "" {
			end(Event{Kind: Done, Gone: true, Well: true}, func(w *world) { gone(w); w.done = true })
		}
	case Checkpoint:
		end(ok, nil)
		end(failed, nil)
	case Tidy, Look, Wait, Prune:
		end(ok, nil)
	case EndSandbox:
		end(ok, func(w *world) { w.job, w.news = none, false })
		end(failed, nil)
	case ReadExit:
		for _, kind := range []Kind{Exited, Fenced, Failed} {
			end(Event{Kind: kind}, nil)
		}
		end(Event{Kind: Exited, Again: true}, nil)
		end(Event{Kind: ExitedWell}, func(w *world) { w.well = true })
	case Listen:
		end(ok, nil)
		end(Event{Kind: Done, OK: true, Again: true}, nil)
	}
	return all
}

type outcome struct {
	event  Event
	change func(*world)
}

// next returns the worlds that can come next. Those by outcomes of what is under way come first.
func (w world) next(on on) (all []world, events []Event, own int) {
	add := func(e Event, change func(*world)) {
		for _, late := range []bool{false, true} {
			if late && e.Kind != Preempt && e.Kind != Done {
				continue
			}
			after := w
			if change != nil {
				change(&after)
			}
			e.Late = late
			all, events = append(all, after.happen(on, e)), append(events, e)
		}
	}
	for _, o := range w.outcomes() {
		add(o.event, func(w *world) {
			w.doing, w.exits = "", 0
			if o.change != nil {
				o.change(w)
			}
		})
	}
	own = len(all)
	if w.state == (State{}) && w.doing == "" { // the first look, before all else
		for _, kind := range []Kind{MoveOpen, MoveStays, Failed} {
			add(Event{Kind: kind}, nil)
		}
		add(Event{Kind: MoveLeft}, func(w *world) { w.left = true })
		return all, events, own
	}
	if w.news && w.state.Phase == Running {
		add(Event{Kind: JobEnded}, func(w *world) { w.news = false })
		own = len(all)
	}
	if w.lives() { // it may end at any time, and be told of later
		after := w
		after.job, after.news = ended, true
		all, events = append(all, after), append(events, Event{Kind: "the job ends"})
	}
	if w.state.Waits() {
		add(Event{Kind: Due}, nil)
		add(Event{Kind: Due, TooLong: true}, nil)
		add(Event{Kind: LookDue}, nil)
	}
	if w.state.Idle() || w.state.Phase == Undecided {
		for _, op := range []Op{AskCheckpoint, AskPause, AskResume, AskStop, AskMove, AskPrune, "unknown"} {
			add(Event{Kind: Ask, Op: op, OK: true}, func(w *world) { w.open = true })
		}
		add(Event{Kind: Ask, Op: AskMove}, func(w *world) { w.open = true })
	}
	leave := func(w *world) { w.pressed, w.told = w.pressed || w.told, true }
	add(Event{Kind: Preempt}, leave)
	add(Event{Kind: Interrupt}, func(w *world) { w.pressed = w.pressed || w.told })
	if w.state.Phase == Starting {
		add(Event{Kind: Quit}, leave)
		add(Event{Kind: Interrupt}, leave)
	} else {
		add(Event{Kind: Quit}, nil)
	}
	add(Event{Kind: Suspend}, nil)
	add(Event{Kind: Signal}, nil)
	if w.grace {
		add(Event{Kind: TimeUp}, func(w *world) { w.grace, w.pressed = false, true })
	}
	add(Event{Kind: Tick}, func(w *world) { w.exits = 0 })
	add(Event{Kind: Tick, Fenced: true}, func(w *world) { w.fenced = true })
	add(Event{Kind: Tick, Exiting: true}, func(w *world) { w.exits = min(w.exits+1, maxStuck) })
	add(Event{Kind: Cancelled}, nil)
	return all, events, own
}

// checker searches breadth first.
type checker struct {
	worlds []world
	from   []int
	by     []Event
	own    [][]int // where the outcomes of what is under way lead
	index  map[world]int
	moves  int
	broken string
	at     int
}

func search(on on) *checker {
	c := &checker{index: make(map[world]int)}
	c.add(world{}, -1, Event{})
	for at := 0; at < len(c.worlds); at++ {
		if c.broken, c.at = c.worlds[at].unsafe(), at; c.broken != "" {
			return c
		}
		if c.worlds[at].state.Phase == Over {
			continue
		}
		all, events, own := c.worlds[at].next(on)
		for i, next := range all {
			c.moves++
			to := c.add(next, at, events[i])
			if i < own {
				c.own[at] = append(c.own[at], to)
			}
		}
	}
	c.checkEnds()
	return c
}

func (c *checker) add(w world, from int, by Event) int {
	if known, there := c.index[w]; there {
		return known
	}
	c.index[w] = len(c.worlds)
	c.worlds, c.from, c.by, c.own = append(c.worlds, w), append(c.from, from), append(c.by, by), append(c.own, nil)
	return len(c.worlds) - 1
}

func (w world) unsafe() string {
	switch {
	case w.broken != "":
		return w.broken
	case w.state.Phase == Over && w.open:
		return "the end without an answer"
	}
	return ""
}

// checkEnds: a job that is to leave leaves, and a request is answered, whatever comes of what is under
// way, and although nothing else happens. From such a world its outcomes lead to the end, and never
// round.
func (c *checker) checkEnds() {
	seen := make([]uint8, len(c.worlds)) // 1 while it is looked at, 2 after
	var visit func(at int)
	visit = func(at int) {
		w := c.worlds[at]
		if c.broken != "" || seen[at] == 2 || w.state.Phase == Over || !w.state.Leave && !w.open && w.state.Phase != Ending {
			return
		}
		if c.at = at; seen[at] == 1 {
			c.broken = "it comes round again"
			return
		}
		if len(c.own[at]) == 0 {
			c.broken = "nothing leads on"
			return
		}
		seen[at] = 1
		for _, to := range c.own[at] {
			visit(to)
		}
		seen[at] = 2
	}
	for at := range c.worlds {
		visit(at)
	}
}

func (c *checker) String() string {
	var trace []string
	for at := c.at; at > 0; at = c.from[at] {
		trace = append(trace, fmt.Sprintf("%+v: %+v", c.by[at], c.worlds[at]))
	}
	slices.Reverse(trace)
	return c.broken + "\n\t" + strings.Join(trace, "\n\t")
}

// TestASignalAfterTheEndHasNotCausedIt: while what a command has left is being ended, a job that has finished
// is not taken for one that was told to leave, or it would run again.
func TestASignalAfterTheEndHasNotCausedIt(t *testing.T) {
	for _, doing := range []Action{"", Checkpoint} {
		for _, test := range []struct {
			signal Event
			want   Action
		}{
			{Event{Kind: Preempt, TooLate: true}, EndJob},
			{Event{Kind: Preempt}, EndAsTold},
		} {
			s, _ := State{Phase: Running, Doing: doing}.On(Event{Kind: JobEnded})
			s, do := s.On(test.signal)
			for _, e := range []Event{{Kind: Done}, {Kind: ExitedWell}, {Kind: Done, OK: true}} {
				if s.Phase == Over || e.Kind == Done && s.Phase == Ending && s.Doing == ReadExit || e.Kind == ExitedWell && s.Doing != ReadExit {
					continue
				}
				s, do = s.On(e)
			}
			if s.Phase != Over || !slices.Contains(do, test.want) {
				t.Errorf("during %q, %+v: %+v, %v: want %s", doing, test.signal, s, do, test.want)
			}
		}
	}
}
