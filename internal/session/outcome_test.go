package session

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"cucriu/internal/inspect"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
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

// TestAnOrphanedSessionSaysRecover: after criu and the watcher were killed nobody else says so.
func TestAnOrphanedSessionSaysRecover(t *testing.T) {
	self, err := proc.IdentOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	gone := self
	gone.StartTime++ // a process that has ended, and whose pid was taken again
	for _, test := range []struct {
		name   string
		record journal.Record
		says   bool
	}{
		{"criu lives", journal.Record{Kind: journal.KindDump, Step: journal.StepDumping, Criu: self}, false},
		{"the watcher lives", journal.Record{Kind: journal.KindDump, Step: journal.StepDumping, Criu: gone, Watcher: &self}, false},
		{"both have ended", journal.Record{Kind: journal.KindDump, Step: journal.StepDumping, Criu: gone, Watcher: &gone}, true},
		{"a restored job, of which criu is the parent", journal.Record{Kind: journal.KindRestore, Step: journal.StepPostResume, Criu: self, Watcher: &gone}, true},
		{"it is over", journal.Record{Kind: journal.KindDump, Step: journal.StepDumped, Criu: gone, Outcome: journal.OutcomeGone}, false},
		{"suspended", journal.Record{Kind: journal.KindSuspend, Step: journal.StepSuspended, Criu: gone}, false},
	} {
		status := StatusOf(&journal.Session{Record: test.record})
		if strings.Contains(status.Message, "cucriu recover") != test.says {
			t.Errorf("%s: %q", test.name, status.Message)
		}
	}
}
