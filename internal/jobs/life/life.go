// Package life decides what the supervisor of a long job does next. It is pure: no files, no clocks,
// no goroutines. Its tests search all orders of events.
//
// The supervisor has one loop. It gives each event to [State.On], keeps the state that it gets, and
// executes the actions in their order. At most one action that takes time is under way (Doing): it runs
// beside the loop and reports back as an event. All others are done before the next event is taken.
//
//	phase      event                          next       actions
//	Undecided  MoveStays                      Starting   Begin
//	           MoveOpen                                  AwaitMove, which reports MoveStays or MoveLeft
//	           MoveLeft                       Over       EndMoved
//	           a signal to leave              Over       EndUndecided
//	           a request                                 Refuse
//	Starting   Here                           Running    Attend, Schedule, Tidy
//	           Finished, Failed               Over       EndFinished, EndFailed
//	           a signal to leave                         GiveUp; then Failed ends with EndGivenUp, and
//	                                                     at Here the signal counts as if it came later
//	           a second one, TimeUp                      CutOff
//	Running    Due, LookDue                              Checkpoint (or Skip), Look
//	           a request                                 its steps, see below; then Answer
//	           JobEnded                       Ending     ReadExit, once what is under way is over
//	           Tick: fenced                   Over       EndFenced
//	           Tick: killed under criu                   Kill, after a few of them
//	           Preempt                        (leaving)  Hasten; wait for what is under way; Unpause if paused;
//	                                                     Last, tried a few times; then EndLeave
//	           (leaving) JobEnded before Last Over       EndAsTold
//	           (leaving) a request                       not taken until the supervisor ends, which refuses it
//	           (leaving) a second one, TimeUp            CutOff, after a Kill unless what is under way ends the
//	                                                     job by itself; then EndLeave
//	Ending     Exited                         Over       EndJob
//	           if it is to be started again   Starting   Restart, Begin
//	           ExitedWell                                Listen; then EndJob, or EndAsTold if a signal
//	                                                     to leave comes: it may have caused the end
//	any        Cancelled                      Over       Abandon: the job keeps running
//
// The steps of the requests, each after the success of the one before:
//
//	checkpoint  Checkpoint
//	pause       Checkpoint, Pause
//	resume      Unpause
//	stop        Unpause if paused, Last; then EndLeave, and AnswerAtEnd; Stay if that fails
//	move        Unpause if paused, Last, EndSandbox; then Undecided
//	prune       Prune
//
// What must hold (the tests check it):
//
//   - A job that lives is killed only after a complete last checkpoint, because this host was told to
//     give it up, because another host owns it, or because it was killed already and criu is stuck with it.
//   - The job is begun only while nothing of it is here, and never after it has moved.
//   - Nothing is asked of a paused job but to resume it.
//   - Every request that was taken gets one answer.
//   - Who is told to leave leaves, whatever fails; nobody needs to repeat a signal.
package life

import "slices"

// Phase is a part of the life of a job.
type Phase string

// The phases. The zero Phase comes before the first look at the record of a move.
const (
	Undecided Phase = ""         // the job may belong to another host: it is being moved
	Starting  Phase = "starting" // it is attached to, resumed or started
	Running   Phase = "running"  // it runs, or is paused
	Ending    Phase = "ending"   // its root process has ended by itself
	Over      Phase = "over"
)

// Op is what a supervisor can be asked.
type Op string

// The requests. Those that it does not know are refused.
const (
	AskCheckpoint Op = "checkpoint"        // make one now
	AskWhen       Op = "checkpoint --when" // the same once the job is ready; waits before it is taken
	AskPause      Op = "pause"             // free the GPUs, and stop
	AskResume     Op = "resume"            // resume after a pause
	AskStop       Op = "stop"              // leave this host, as at a preemption
	AskMove       Op = "move"              // end here with a last checkpoint, because the job moves to another host
	AskPrune      Op = "prune"             // remove old checkpoints
)

// lastStep is the action with which a request is served.
func (o Op) lastStep() Action {
	return map[Op]Action{AskCheckpoint: Checkpoint, AskPause: Pause, AskResume: Unpause, AskStop: Last, AskMove: EndSandbox, AskPrune: Prune}[o]
}

// State is where a job is in its life. The zero State is the first.
type State struct {
	Phase  Phase
	Doing  Action // the action under way that takes time; "" is none
	Asked  Op     // the request that waits for its answer; "" is none
	Paused bool   // the job is paused
	Gone   bool   // the job's root process has ended, or is about to
	Leave  bool   // somebody said that the job is to leave, or not to come
	Hurry  bool   // and there is no time for anything any more
	Told   bool   // the job was asked to end, and is not started again
	Stop   bool   // the supervisor stops itself (Ctrl-Z) once nothing is under way
	Tries  int    // of a last checkpoint
	Stuck  int    // how often in a row the root process was seen ending while something was under way
}

const (
	maxTries = 3 // as long as the job runs and there is time
	maxStuck = 3 // criu waits for a process that was killed under it
)

// Event is something that happened.
type Event struct {
	Kind    Kind
	Op      Op   // of Ask
	OK      bool // Done: the action has succeeded; Ask: the request can be served
	Gone    bool // Done, of Last: the job is ended, or about to
	Well    bool // Done, of Last: it has come to its end by itself meanwhile, with status 0
	Paused  bool // Here, and Done of Pause: the job is paused
	TooLong bool // Due: the job would be paused for longer than it may
	Fenced  bool // Tick: another host owns the job
	Exiting bool // Tick: the root process is about to end
	TooLate bool // Preempt: long after the command's end, which it has not caused
	Again   bool // Exited, and Done of Listen: the job is to be started again
	Late    bool // the time that is left is too short for a last checkpoint
}

// Kind is what kind of event it is.
type Kind string

// The kinds of events.
const (
	MoveOpen  Kind = "move is open" // it is not decided where the job runs; only at the start
	MoveStays Kind = "move stays"   // the job belongs here
	MoveLeft  Kind = "move left"    // it belongs to another host

	Here     Kind = "here"     // the job runs, or has ended while nobody looked
	Finished Kind = "finished" // it has come to its end before
	Failed   Kind = "failed"   // what is under way has failed, and the supervisor ends with its error

	Done     Kind = "done" // what is under way has ended; OK says how
	Due      Kind = "due"  // it is time for a checkpoint
	LookDue  Kind = "look due"
	Ask      Kind = "ask"
	Tick     Kind = "tick"
	JobEnded Kind = "job ended"

	Exited     Kind = "exited"
	ExitedWell Kind = "exited well" // with status 0, or as programs do at a signal to leave
	Fenced     Kind = "fenced"

	Preempt   Kind = "preempt"   // a signal: the job is to leave this host
	Interrupt Kind = "interrupt" // SIGINT
	Quit      Kind = "quit"      // SIGQUIT, SIGTERM
	Suspend   Kind = "suspend"   // SIGTSTP
	Signal    Kind = "signal"    // any other
	TimeUp    Kind = "time is up"
	Cancelled Kind = "cancelled"
)

// Action is something to do.
type Action string

// Actions that take time. Each ends with an event: Done, unless another one is named.
const (
	AwaitMove  Action = "await move" // MoveStays, MoveLeft or Failed
	Begin      Action = "begin"      // Here, Finished or Failed
	Tidy       Action = "tidy"       // what an earlier supervisor had no time for
	Look       Action = "look"       // whether the job could be dumped
	Checkpoint Action = "checkpoint"
	Pause      Action = "pause"
	Unpause    Action = "unpause"
	Last       Action = "last checkpoint" // which ends the job
	Wait       Action = "wait"            // a moment, before the next try
	Prune      Action = "prune"
	EndSandbox Action = "end sandbox"
	ReadExit   Action = "read exit" // Exited, ExitedWell, Fenced or Failed
	Listen     Action = "listen"    // for a signal that was sent to the job and to us
)

// Actions that take none.
const (
	Attend     Action = "attend"      // begin to wait for the job's end, and for what was kept
	Keep       Action = "keep signal" // until the job is here
	GiveUp     Action = "give up"     // a begin, at the next point where nothing is lost; and keep the signal
	Hasten     Action = "hasten"      // tell of the preemption, note that the job leaves, and cut off housekeeping, which can be repeated
	Stay       Action = "stay"        // note that the job does not leave after all
	CutOff     Action = "cut off"     // end what is under way
	StartGrace Action = "start grace" // the time until TimeUp, unless it runs already
	Kill       Action = "kill"        // what there is of the job, under what is at work on it
	KillRest   Action = "kill rest"   // of a job whose root process has ended, once it is known how

	Schedule Action = "schedule" // the next checkpoint
	Retry    Action = "retry"    // a checkpoint that failed, soon
	Show     Action = "show"     // the state, to cucriu status
	Skip     Action = "skip"     // tell that a checkpoint is left out
	Pass     Action = "pass"     // the signal on to the job
	StopSelf Action = "stop self"

	Restart Action = "restart" // tell that the job is started again, before a Begin that first ends what is left of it

	Answer      Action = "answer"        // the request, with the result of what has ended
	AnswerAtEnd Action = "answer at end" // once the directory is given back
	Refuse      Action = "refuse"        // the request, by what the state is
	TellNoLast  Action = "tell no last checkpoint"
)

// Actions with which the supervisor ends.
const (
	EndMoved     Action = "end: moved"
	EndUndecided Action = "end: undecided"
	EndFinished  Action = "end: finished" // before
	EndFailed    Action = "end: failed"   // with the error of the event
	EndGivenUp   Action = "end: given up" // before the job was here
	EndFenced    Action = "end: fenced"   // kills the job: another host owns it
	EndLeave     Action = "end: leave"    // kills what there is of the job; it resumes from its newest checkpoint
	EndAsTold    Action = "end: as told"  // the job has ended because of a signal to leave
	EndJob       Action = "end: job"      // with the job's status
	Abandon      Action = "end: abandon"  // the job keeps running
)

// Idle reports whether requests are served.
func (s State) Idle() bool { return s.Phase == Running && s.Doing == "" }

// Waits reports whether the job runs and nothing keeps it from being checkpointed.
func (s State) Waits() bool { return s.Idle() && !s.Paused }

// On answers an event.
func (s State) On(e Event) (State, []Action) {
	switch {
	case s.Phase == Over:
		return s, nil
	case e.Kind == Cancelled && s.Asked != "":
		s.Asked = ""
		return s.end(Refuse, CutOff, Abandon)
	case e.Kind == Cancelled:
		return s.end(CutOff, Abandon)
	case e.Kind == Preempt && e.TooLate && s.Gone && !s.Leave:
		return s, nil // what is still to be done for a job that has ended is done, or its exit status is lost
	case s.Phase == Undecided:
		return s.undecided(e)
	case s.Phase == Starting:
		return s.starting(e)
	case s.Phase == Ending:
		return s.ending(e)
	}
	return s.running(e)
}

// do begins an action that takes time, after others.
func (s State) do(a Action, before ...Action) (State, []Action) {
	s.Doing = a
	return s, append(before, a)
}

// end ends the supervisor. A request that is still open is answered first.
func (s State) end(actions ...Action) (State, []Action) {
	if s.Phase, s.Doing = Over, ""; s.Asked != "" && !slices.Contains(actions, AnswerAtEnd) {
		actions = append([]Action{Answer}, actions...)
	}
	s.Asked = ""
	return s, actions
}

func (s State) undecided(e Event) (State, []Action) {
	switch e.Kind {
	case MoveOpen:
		return s.do(AwaitMove)
	case MoveStays:
		s.Phase = Starting
		return s.do(Begin)
	case MoveLeft:
		return s.end(EndMoved)
	case Failed:
		return s.end(EndFailed)
	case Ask:
		return s, []Action{Refuse}
	case Preempt, Interrupt, Quit:
		return s.end(EndUndecided)
	}
	return s, nil
}

func (s State) starting(e Event) (State, []Action) {
	switch e.Kind {
	case Here:
		s.Phase, s.Paused, s.Leave = Running, e.Paused, false
		return s.do(Tidy, Attend, Schedule)
	case Finished:
		return s.end(EndFinished)
	case Failed:
		if s.Leave {
			return s.end(EndGivenUp)
		}
		return s.end(EndFailed)
	case TimeUp:
		s.Hurry = true
		return s, []Action{CutOff}
	case Preempt, Interrupt, Quit:
		switch {
		case s.Leave:
			return s, []Action{Keep, CutOff}
		case e.Kind == Preempt:
			s.Leave = true
			return s, []Action{StartGrace, GiveUp}
		}
		s.Leave = true
		return s, []Action{GiveUp}
	case Suspend, Signal:
		return s, []Action{Keep}
	}
	return s, nil
}

// running answers what happens to a job that is here.
func (s State) running(e Event) (State, []Action) {
	switch e.Kind {
	case Done:
		return s.done(e)
	case Tick:
		return s.tick(e)
	case JobEnded:
		return s.jobEnded()
	case Preempt, Interrupt, TimeUp:
		if s.Leave && !s.Hurry {
			s.Hurry = true
			return s, s.cut()
		}
	}
	if s.Leave {
		return s, nil
	}
	switch e.Kind {
	case Preempt:
		s.Leave = true
		do := []Action{StartGrace, Hasten}
		var more []Action
		switch {
		case s.Doing == "":
			s, more = s.lastOrLeave(e)
		case s.Hurry: // the time was up before the job was here
			more = s.cut()
		}
		return s, append(do, more...)
	case TimeUp:
		s.Hurry = true
	case Due:
		if e.TooLong {
			return s, []Action{Skip, Schedule}
		}
		return s.do(Checkpoint)
	case LookDue:
		return s.do(Look)
	case Ask:
		return s.asked(e)
	case Suspend:
		if s.Stop = s.Doing != ""; !s.Stop { // else the job may be held
			return s, []Action{StopSelf}
		}
	case Interrupt, Quit, Signal:
		if s.Doing != EndSandbox {
			s.Told = s.Told || e.Kind != Signal && !s.Paused
			return s, []Action{Pass}
		}
	}
	return s, nil
}

// cut is how what is under way is ended. A last checkpoint may be complete already; other things are
// of no use any more, nor is the job.
func (s State) cut() []Action {
	if s.endsJob() || s.Doing == Wait {
		return []Action{CutOff}
	}
	return []Action{Kill, CutOff}
}

// endsJob reports whether what is under way ends the job by itself.
func (s State) endsJob() bool { return s.Doing == Last || s.Doing == EndSandbox }

// lastOrLeave says what comes next for a job that is to leave, while nothing is under way.
func (s State) lastOrLeave(e Event) (State, []Action) {
	switch {
	case s.Tries == 0 && (s.Hurry || e.Late && !s.Gone):
		return s.end(TellNoLast, EndLeave)
	case s.Gone && s.Tries == 0: // it has ended by itself meanwhile
		return s.end(EndAsTold)
	case s.Gone || s.Hurry || s.Tries == maxTries:
		return s.end(EndLeave)
	case s.Paused:
		return s.do(Unpause)
	}
	s.Tries++
	return s.do(Last)
}

// asked takes a request, while nothing is under way.
func (s State) asked(e Event) (State, []Action) {
	first := Action("")
	switch e.Op {
	case AskPrune:
		first = Prune
	case AskResume:
		if s.Paused {
			first = Unpause
		}
	case AskCheckpoint, AskPause:
		if !s.Paused {
			first = Checkpoint
		}
	case AskStop, AskMove:
		if first = Last; s.Paused {
			first = Unpause
		}
	}
	if first == "" || !e.OK {
		return s, []Action{Refuse}
	}
	s.Asked = e.Op
	return s.do(first)
}

// done answers the end of what was under way.
func (s State) done(e Event) (State, []Action) {
	was := s.Doing
	s.Doing, s.Stuck, s.Gone = "", 0, s.Gone || e.Gone
	switch was {
	case Pause:
		s.Paused = e.Paused
	case Unpause:
		s.Paused = s.Paused && !e.OK
	case Last:
		return s.lastDone(e)
	case EndSandbox:
		return s.sandboxEnded(e)
	}
	switch {
	case was == Unpause && s.Leave && !e.OK:
		return s.end(EndLeave)
	case !e.OK || s.Gone || s.Hurry:
	case was == Unpause && (s.Asked == AskStop || s.Asked == AskMove):
		return s.do(Last)
	case was == Checkpoint && s.Asked == AskPause && !s.Leave:
		return s.do(Pause)
	}
	do := s.schedule(was, e.OK)
	if s.Asked != "" && (!e.OK || was == s.Asked.lastStep()) {
		do = append(do, Answer)
	} else if s.Asked != "" {
		do = append(do, Refuse) // there is no time for its other steps
	}
	s.Asked = ""
	return s.goOn(e, do)
}

// lastDone answers the end of a last checkpoint.
func (s State) lastDone(e Event) (State, []Action) {
	switch {
	case s.Asked != "" && e.Well && !s.Leave: // it has finished
		s.Asked, s.Told = "", true
		return s.goOn(e, []Action{Stay, Answer})
	case s.Asked == AskMove && (e.OK || s.Gone):
		return s.do(EndSandbox)
	case s.Asked == AskStop && e.OK:
		return s.end(AnswerAtEnd, EndLeave)
	case e.OK || s.Gone:
		return s.end(EndLeave)
	case s.Asked != "": // whoever has asked is there, and can decide
		s.Asked = ""
		do := append(s.schedule(Last, false), Answer)
		if !s.Leave { // which whoever has asked may rely on
			do = append([]Action{Stay}, do...)
		}
		return s.goOn(e, do)
	case s.Hurry || s.Tries == maxTries:
		return s.end(EndLeave)
	}
	return s.do(Wait)
}

// sandboxEnded answers the end of what was left of a job that moves.
func (s State) sandboxEnded(e Event) (State, []Action) {
	switch {
	case !e.OK:
		return s.end(EndFailed)
	case s.Leave:
		return s.end(EndUndecided)
	}
	return State{}.do(AwaitMove, Answer)
}

// schedule says when the next checkpoint is to be made, after what has ended, and shows that the job runs.
func (s State) schedule(was Action, ok bool) []Action {
	switch {
	case s.Leave || s.Gone:
		return nil
	case (was == Checkpoint || was == Last) && !ok:
		return []Action{Retry}
	case was == Checkpoint, was == Pause, was == Unpause:
		return []Action{Schedule}
	}
	return []Action{Show}
}

// goOn continues once nothing is under way, after the actions for what has ended.
func (s State) goOn(e Event, do []Action) (State, []Action) {
	var more []Action
	switch {
	case s.Leave:
		s, more = s.lastOrLeave(e)
	case s.Gone:
		s, more = s.jobEnded()
	case s.Stop:
		s.Stop, more = false, []Action{StopSelf}
	}
	return s, append(do, more...)
}

// jobEnded answers the end of the job's root process. criu waits permanently for a process that is
// gone, so what is under way ends with the rest of the job; what is on its way to the store gets there.
func (s State) jobEnded() (State, []Action) {
	s.Gone = true
	switch {
	case s.Doing == "":
		s.Phase = Ending
		return s.do(ReadExit)
	case s.endsJob() || s.Doing == Wait || s.Hurry:
		return s, nil
	}
	return s, []Action{KillRest}
}

// tick answers a regular look.
func (s State) tick(e Event) (State, []Action) {
	switch {
	case s.Doing == "" && e.Fenced:
		return s.end(EndFenced)
	case s.Doing == "" || s.endsJob() || !e.Exiting:
		s.Stuck = 0
	case s.Stuck < maxStuck:
		if s.Stuck++; s.Stuck == maxStuck {
			return s, []Action{Kill}
		}
	}
	return s, nil
}

// ending answers what happens while it is found out how the job has ended. A scheduler may send a
// signal to all processes, and the job may have ended because of it.
func (s State) ending(e Event) (State, []Action) {
	switch e.Kind {
	case Preempt:
		if s.Leave = true; s.Doing == Listen {
			return s.end(EndAsTold)
		}
	case Interrupt, Quit: // which was sent to the job as well, and here comes late
		s.Told = true
	case ExitedWell:
		if s.Leave {
			return s.end(EndAsTold)
		}
		return s.do(Listen)
	case Exited, Done:
		if e.Again && !s.Told && !s.Leave {
			return State{Phase: Starting}.do(Begin, Restart)
		}
		return s.end(EndJob)
	case Fenced:
		return s.end(EndFenced)
	case Failed:
		return s.end(EndFailed)
	}
	return s, nil
}
