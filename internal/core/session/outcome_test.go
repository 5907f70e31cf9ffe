package session

import (
	"errors"
	"slices"
	"testing"

	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/proc"
)

func TestTheVerdictSaysWhatBecameOfEveryProcess(t *testing.T) {
	one := journal.Member{Process: inspect.Process{Ident: proc.Ident{PID: 1}, Name: "a"}}
	two := journal.Member{Process: inspect.Process{Ident: proc.Ident{PID: 2}, Name: "b"}}
	for _, test := range []struct {
		name    string
		alive   []int
		outcome journal.Outcome
		text    string
		ended   bool
	}{
		{"all live", []int{1, 2}, journal.OutcomeRunning, "the job keeps running", false},
		{"one lives", []int{2}, journal.OutcomeRunning, "a part of the job has ended: process 1 (a); the rest keeps running", true},
		{"none lives", nil, journal.OutcomeGone, "the job has ended: process 1 (a), process 2 (b)", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var f JobOutcome
			for _, m := range []journal.Member{one, two} {
				if slices.Contains(test.alive, m.PID) {
					f.Alive = append(f.Alive, m)
				} else {
					f.Ended = append(f.Ended, m)
				}
			}
			if f.recorded(journal.OutcomeRunning) != test.outcome || f.Text("keeps running") != test.text {
				t.Errorf("%s: %q", f.recorded(journal.OutcomeRunning), f.Text("keeps running"))
			}
			if err := f.Err("keeps running"); errors.Is(err, ErrEnded) != test.ended {
				t.Errorf("error: %v", err)
			}
		})
	}
}
