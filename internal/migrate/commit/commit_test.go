package commit

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestExactlyOneCopyGoesOn: in every interleaving of two programs, their watchers, recovers,
// requests to settle, a person who keeps to the rules, crashes, losses and destroyed hosts.
func TestExactlyOneCopyGoesOn(t *testing.T) {
	t.Parallel()
	r := model{protocol: built(), person: honest, helpers: maxHelpers, destroy: true}.check()
	t.Logf("%d worlds, %d moves", r.worlds, r.moves)
	if r.broken != "" {
		t.Error(r)
	}
}

// TestNobodyNeedsAPerson: the same where nobody decides and both hosts stay.
func TestNobodyNeedsAPerson(t *testing.T) {
	r := model{protocol: built(), helpers: 1}.check()
	t.Logf("%d worlds, %d moves", r.worlds, r.moves)
	if r.broken != "" {
		t.Error(r)
	}
}

// TestTheRulesForAPersonAreBothNeeded: a person who decides without having looked breaks it.
func TestTheRulesForAPersonAreBothNeeded(t *testing.T) {
	for name, rule := range map[string]struct{ event, without Event }{
		"take": {Take, Drop},
		"drop": {Drop, Take},
	} {
		t.Run(name, func(t *testing.T) {
			p := built()
			destination := p.destination
			p.destination = func(d DestinationState, e Event) (answer, error) {
				if e == rule.without { // so that the other one must break it
					return nil, nil
				}
				return destination(d, e)
			}
			r := model{protocol: p, person: liar, helpers: 1}.check()
			if r.broken == "" {
				t.Errorf("nothing was found in %d worlds", r.worlds)
			}
			t.Log(r)
		})
	}
}

func TestAnEventThatCannotHappenChangesNothingAndIsNamed(t *testing.T) {
	source := map[SourceState][]Event{
		Undecided: {Running, Commit, Abort, Complete, Take, Drop},
		Back:      {Running, Commit, Abort, Complete, Take, Drop},
		End:       {Ended, Commit, Abort, Complete, Take, Drop},
		"":        events(),
	}
	for s, impossible := range source {
		for _, e := range events() {
			next, do, err := s.HandleEvent(e)
			want := fmt.Sprintf("%q cannot happen to the source of a migration in state %q", e, s)
			checkAnswer(t, slices.Contains(impossible, e), next == s && do == nil, err, want)
		}
	}
	toSource := []Event{Ready, Running, Ended, Unknown} // what only a source hears
	destination := map[DestinationState][]Event{
		Receiving: append([]Event{Commit, Take, Drop}, toSource...),
		Promised:  append([]Event{Complete}, toSource...),
		Go:        append([]Event{Complete, Abort, Drop}, toSource...),
		Dropped:   append([]Event{Commit, Take}, toSource...),
		"":        events(),
	}
	for d, impossible := range destination {
		for _, e := range events() {
			next, do, err := d.HandleEvent(e)
			want := fmt.Sprintf("%q cannot happen to the destination of a migration in state %q", e, d)
			checkAnswer(t, slices.Contains(impossible, e), next == d && do == nil, err, want)
		}
	}
}

func checkAnswer(t *testing.T, impossible, nothing bool, err error, want string) {
	t.Helper()
	switch {
	case !impossible && err != nil:
		t.Error(err)
	case impossible && (err == nil || err.Error() != want):
		t.Errorf("error %v, want %s", err, want)
	case impossible && !nothing:
		t.Errorf("something is to be done although %v", err)
	}
}

// TestDecisionsAreFinal: no event leads out of a decision, whatever was said before.
func TestDecisionsAreFinal(t *testing.T) {
	for _, e := range events() {
		for _, s := range []SourceState{Back, End} {
			if next, _, _ := s.HandleEvent(e); next != s {
				t.Errorf("%q leads the source from %q to %q", e, s, next)
			}
		}
		for _, d := range []DestinationState{Go, Dropped} {
			if next, _, _ := d.HandleEvent(e); next != d {
				t.Errorf("%q leads the destination from %q to %q", e, d, next)
			}
		}
	}
}

func events() []Event {
	return []Event{Ready, Commit, Abort, Running, Ended, Unknown, Complete, Failed, ControlLost, ProgramGone, Recover, Take, Drop}
}

// TestTheRulesNameWhatAPersonSees: what status prints names the two things that the checker's
// person looks at.
func TestTheRulesNameWhatAPersonSees(t *testing.T) {
	for rule, sees := range map[string][]string{
		WhenToTake: {"copy has ended", "host is destroyed"},
		WhenToDrop: {"keeps running there"},
	} {
		for _, one := range sees {
			if !strings.Contains(rule, one) {
				t.Errorf("%q does not say %q", rule, one)
			}
		}
	}
}
