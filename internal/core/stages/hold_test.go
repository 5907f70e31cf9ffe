package stages

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"

	"cucriu/criuutil"
	"cucriu/hooks/config"
	"cucriu/internal/core/engine"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// openProcess takes hold of a process.
func openProcess(t *testing.T, pid int) *proc.Process {
	t.Helper()
	p, err := proc.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// TestNobodyIsStoppedBeforeThatIsWrittenDown: whoever comes after a kill continues only what the journal names.
func TestNobodyIsStoppedBeforeThatIsWrittenDown(t *testing.T) {
	env := session.Of(new(config.Hook))
	env.Config.RunDir = t.TempDir()
	record := journal.Record{Kind: journal.KindDump, Criu: openProcess(t, os.Getpid()).Ident}
	s, err := env.NewSession(record, session.ByCommand, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Unlock()
	root := startTree(t, "exec sleep 1000")
	d := &dump{Suspension: engine.Suspension{Env: env, Root: root, Session: s}}
	defer d.Close()
	if err := os.Rename(s.Dir(), s.Dir()+".away"); err != nil { // nothing can be written
		t.Fatal(err)
	}
	if _, err := d.stopOthers(t.Context()); err == nil {
		t.Error("it succeeded")
	}
	if stopped, err := proc.Stopped(root); err != nil || stopped {
		t.Errorf("stopped %v, %v", stopped, err)
	}
	if err := os.Rename(s.Dir()+".away", s.Dir()); err != nil {
		t.Fatal(err)
	}
	d.Others, s.Others = nil, nil
	if found, err := d.stopOthers(t.Context()); err != nil || !found {
		t.Fatal(found, err)
	}
	written, err := journal.Read(s.Dir())
	if err != nil || len(written.Others) != 1 || written.Others[0].PID != root {
		t.Errorf("written down: %v, %v", written.Others, err)
	}
	if stopped, err := proc.Stopped(root); err != nil || !stopped {
		t.Errorf("stopped %v, %v", stopped, err)
	}
}

// TestProcessesWithoutCUDAAreStoppedInARestore, except for those that were stopped when they were dumped.
func TestProcessesWithoutCUDAAreStoppedInARestore(t *testing.T) {
	cuda := startTree(t, "sleep 1000 & sleep 1001 & wait")
	var children []int
	for deadline := time.Now().Add(time.Minute); len(children) < 2; time.Sleep(time.Millisecond) {
		var err error
		if children, err = proc.Children(cuda); err != nil || time.Now().After(deadline) {
			t.Fatal(children, err)
		}
	}
	root := openProcess(t, cuda).Ident
	s := &journal.Record{
		Root: &root, Members: []journal.Member{{Process: inspect.Process{Ident: root}}},
		Manifest: &imagedir.Manifest{StoppedOthers: children[:1]},
	}
	if err := holdOthers(s); err != nil {
		t.Fatal(err)
	}
	if len(s.Others) != 1 || s.Others[0].PID != children[1] {
		t.Errorf("%v, want %d alone", s.Others, children[1])
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Soon)
	defer cancel()
	if err := proc.WaitStopped(ctx, openProcess(t, children[1])); err != nil {
		t.Error(err)
	}
	for _, pid := range []int{cuda, children[0]} {
		if stopped, err := proc.Stopped(pid); err != nil || stopped {
			t.Errorf("process %d: stopped %v, %v", pid, stopped, err)
		}
	}
}

// TestARootThatIsOlderThanItsCriuIsNoRestoredOne: the restore side ends a tree when it fails.
func TestARootThatIsOlderThanItsCriuIsNoRestoredOne(t *testing.T) {
	self := openProcess(t, os.Getpid())
	for name, test := range map[string]struct {
		later   uint64 // than the root
		pid     string
		refused bool
	}{
		"restored":             {0, "", false},
		"older than criu":      {1, "", true},
		"it has been ended":    {1, "4194304", false},
		"criu names none here": {1, "no", false},
	} {
		criu := *self
		criu.StartTime += test.later
		c := &call{criu: &criuutil.Criu{Ident: criuutil.Ident(criu.Ident)}, stage: Stage{InitPID: test.pid}}
		if test.pid == "" {
			c.stage.InitPID = strconv.Itoa(self.PID)
		}
		if err := c.checkRestored(); (err != nil) != test.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
