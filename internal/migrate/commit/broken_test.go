package commit

import "testing"

// variant replaces single answers of the protocol.
type variant struct {
	name        string
	source      map[SourceState]map[Event]answer
	destination map[DestinationState]map[Event]answer
	unlocked    bool
	closesEarly bool
	person      person
	destroy     bool
}

// broken are ways to get the protocol wrong.
var broken = []variant{
	{name: "the source kills before its decision is on disk", source: map[SourceState]map[Event]answer{
		Undecided: {Ready: {KillCopy, End, SayCommit}},
	}},
	{name: "the source says commit before its decision is on disk", source: map[SourceState]map[Event]answer{
		Undecided: {Ready: {SayCommit, End, KillCopy}},
	}},
	{name: "the source says commit before it has killed its copy", source: map[SourceState]map[Event]answer{
		Undecided: {Ready: {End, SayCommit, KillCopy}},
	}},
	{name: "a recover says commit and does not kill first", source: map[SourceState]map[Event]answer{
		End: {Recover: {SayCommit}},
	}},
	{name: "the source goes on here after it has decided to end, as control is lost", source: map[SourceState]map[Event]answer{
		End: {ControlLost: {Back, BringBack, SayAbort}},
	}},
	{name: "the source's watcher brings the copy back whatever was decided", source: map[SourceState]map[Event]answer{
		End: {ProgramGone: {BringBack}},
	}},
	{name: "the source's watcher takes silence for ready", source: map[SourceState]map[Event]answer{
		Undecided: {ProgramGone: {End, KillCopy, SayCommit}},
	}},
	{name: "the source ends its copy although the destination has ended its own", source: map[SourceState]map[Event]answer{
		Undecided: {Ended: {End, KillCopy, Close}},
	}},
	{name: "the copy is brought back before the decision is on disk", source: map[SourceState]map[Event]answer{
		Undecided: {Recover: {BringBack, Back, SayAbort}},
	}},
	{name: "the source says abort before its decision is on disk", source: map[SourceState]map[Event]answer{
		Undecided: {Recover: {SayAbort, Back, BringBack}},
	}},
	{name: "the source commits on a ready that comes after it went on", source: map[SourceState]map[Event]answer{
		Back: {Ready: {End, KillCopy, SayCommit}},
	}},
	{name: "a copy that was stopped after the decision is not brought back", source: map[SourceState]map[Event]answer{
		Back: {Ready: {SayAbort}, Failed: {SayAbort}, ControlLost: {SayAbort}, Recover: {SayAbort}, ProgramGone: {}, Ended: {Close}, Unknown: {Close}},
	}},
	{name: "the source closes before the destination has answered commit", source: map[SourceState]map[Event]answer{
		Undecided: {Ready: {End, KillCopy, SayCommit, Close}},
	}},
	{name: "the source closes before the destination has answered abort", source: map[SourceState]map[Event]answer{
		Undecided: {Failed: {Back, BringBack, SayAbort, Close}},
	}},
	{name: "a recover does not tell the destination", source: map[SourceState]map[Event]answer{
		End: {Recover: {KillCopy}, ControlLost: {KillCopy}, Failed: {KillCopy}},
	}},
	{name: "the destination lets its copy run before commit", destination: map[DestinationState]map[Event]answer{
		Receiving: {Complete: {Go, LetRun, SayReady}},
	}},
	{name: "the destination lets its copy run before that is on disk", destination: map[DestinationState]map[Event]answer{
		Promised: {Commit: {LetRun, Go, SayRunning, Close}},
	}},
	{name: "the destination says ready before its promise is on disk", destination: map[DestinationState]map[Event]answer{
		Receiving: {Complete: {SayReady, Promised}},
	}},
	{name: "the destination forgets its promise as its program is killed", destination: map[DestinationState]map[Event]answer{
		Promised: {ProgramGone: {Dropped, KillCopy, Close}},
	}},
	{name: "the destination forgets its promise as control is lost", destination: map[DestinationState]map[Event]answer{
		Promised: {ControlLost: {Dropped, KillCopy, Close}},
	}},
	{name: "the destination forgets its promise after a deadline", destination: map[DestinationState]map[Event]answer{
		Promised: {Failed: {Dropped, KillCopy, SayEnded, Close}},
	}},
	{name: "the destination takes silence for commit", destination: map[DestinationState]map[Event]answer{
		Promised: {ControlLost: {Go, LetRun, Close}},
	}},
	{name: "a recover at the destination takes the job", destination: map[DestinationState]map[Event]answer{
		Promised: {Recover: {Go, LetRun, Close}},
	}},
	{name: "a recover at the destination drops the job", destination: map[DestinationState]map[Event]answer{
		Promised: {Recover: {Dropped, KillCopy, Close}},
	}},
	{name: "the destination kills before it is on disk that it drops", destination: map[DestinationState]map[Event]answer{
		Receiving: {Recover: {KillCopy, Dropped, Close}},
	}},
	{name: "the destination, asked early, says ended before that is on disk", destination: map[DestinationState]map[Event]answer{
		Receiving: {Abort: {SayEnded, Dropped, KillCopy, Close}},
	}},
	{name: "the destination answers abort before that is on disk", destination: map[DestinationState]map[Event]answer{
		Promised: {Abort: {SayEnded, Dropped, KillCopy, Close}},
	}},
	{name: "the destination closes before it lets its copy run", destination: map[DestinationState]map[Event]answer{
		Promised: {Commit: {Go, Close, LetRun, SayRunning}},
	}},
	{name: "a recover does not let run what was to go", destination: map[DestinationState]map[Event]answer{
		Go: {Recover: {Close}},
	}},
	{name: "a copy that is complete after it was dropped stays", destination: map[DestinationState]map[Event]answer{
		Dropped: {Complete: {Close}},
	}},
	{name: "a person who drops lets the copy run", destination: map[DestinationState]map[Event]answer{
		Promised: {Drop: {Go, LetRun, Close}},
	}, person: honest},
	{name: "a person who takes ends the copy", destination: map[DestinationState]map[Event]answer{
		Promised: {Take: {Dropped, KillCopy, Close}},
	}, person: honest, destroy: true},
	{name: "a state is used that was read before the lock was taken", unlocked: true},
	{name: "a record is closed while the program that began is at work on it", closesEarly: true},
}

// protocol returns the protocol with the variant's answers in place of its own.
func (v variant) protocol() protocol {
	p := built()
	source, destination := p.source, p.destination
	p.unlocked, p.closesEarly = v.unlocked, v.closesEarly
	p.source = func(s SourceState, e Event) (answer, error) {
		if a, there := v.source[s][e]; there {
			return append(answer(nil), a...), nil
		}
		return source(s, e)
	}
	p.destination = func(d DestinationState, e Event) (answer, error) {
		if a, there := v.destination[d][e]; there {
			return append(answer(nil), a...), nil
		}
		return destination(d, e)
	}
	return p
}

// TestTheCheckerFindsWhatIsBroken shows that the checker can fail, and why each rule is there.
func TestTheCheckerFindsWhatIsBroken(t *testing.T) {
	t.Parallel()
	for _, v := range broken {
		t.Run(v.name, func(t *testing.T) {
			r := model{protocol: v.protocol(), helpers: 1, person: v.person, destroy: v.destroy}.check()
			if r.broken == "" {
				t.Fatalf("nothing was found in %d worlds", r.worlds)
			}
			t.Logf("after %d worlds: %s", r.worlds, r)
		})
	}
}
