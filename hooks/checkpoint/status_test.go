package checkpoint

import (
	"os"
	"strings"
	"testing"

	"cucriu/internal/core/journal"
	"cucriu/internal/kit/proc"
)

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
		status := statusOf(&journal.Session{Record: test.record})
		if strings.Contains(status.Message, "cucriu recover") != test.says {
			t.Errorf("%s: %q", test.name, status.Message)
		}
	}
}
