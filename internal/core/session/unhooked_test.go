package session

import (
	"os"
	"strings"
	"testing"

	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/proc"
)

// TestARestoreWithoutTheHookIsExplained by the last dump of the process, unless a restore is at work.
func TestARestoreWithoutTheHookIsExplained(t *testing.T) {
	self, err := proc.IdentOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const pid = 1<<22 + 1 // no process has it
	of := func(kind journal.Kind, outcome journal.Outcome) *journal.Session {
		member := journal.Member{Process: inspect.Process{Ident: proc.Ident{PID: pid}, Name: "train"}}
		return &journal.Session{Record: journal.Record{
			Kind: kind, Outcome: outcome, Criu: self, Root: &proc.Ident{PID: pid - 1},
			Members: []journal.Member{member}, ImageDir: "/partial", PublishedDir: "/images",
		}}
	}
	dumped, left := of(journal.KindDump, journal.OutcomeDumped), of(journal.KindDump, journal.OutcomeRunning)
	left.PublishedDir = t.TempDir()
	if err := os.WriteFile(left.PublishedDir+"/inventory.img", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	same := of(journal.KindDump, journal.OutcomeRunning)
	same.PublishedDir, same.Members[0].StartTime = left.PublishedDir, 1
	failed, before := of(journal.KindRestore, journal.OutcomeLeft), of(journal.KindRestore, journal.OutcomeLeft)
	failed.PublishedDir, failed.Root, failed.Members = "", &self, nil
	before.Root = &proc.Ident{PID: self.PID, StartTime: self.StartTime + 1, PIDNamespace: self.PIDNamespace}
	if err := unhooked([]*journal.Session{dumped, failed}, self, "train"); err == nil ||
		!strings.Contains(err.Error(), "restored from /partial by a restore that failed (restore.on_failure: leave), and") {
		t.Errorf("one that a restore has left: %v", err)
	}
	for name, c := range map[string]struct {
		all  []*journal.Session
		name string
		says string
	}{
		"a process of the dump":    {[]*journal.Session{dumped}, "train", "restored from /images without cucriu-hook, and can never run: kill -9 4194305, then cucriu restore -D /images"},
		"left, ended and restored": {[]*journal.Session{dumped, before}, "train", "without cucriu-hook"},
		"another that has its pid": {[]*journal.Session{dumped}, "bash", ""},
		"dumped again, and failed": {[]*journal.Session{dumped, of(journal.KindDump, journal.OutcomeRunning)}, "train", ""},
		"dumped, and left": {
			[]*journal.Session{left},
			"train",
			"restored from " + left.PublishedDir + " without cucriu-hook",
		},
		"left, and still there": {[]*journal.Session{same}, "train", ""},
		"nothing":               {nil, "train", ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := unhooked(c.all, proc.Ident{PID: pid, StartTime: 1}, c.name)
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
	over := of(journal.KindRestore, journal.OutcomeRunning)
	working := of(journal.KindRestore, "")
	if isRestoring([]*journal.Session{dumped, over}) || !isRestoring([]*journal.Session{dumped, over, working}) {
		t.Error("it is not told whether a restore is at work")
	}
}
