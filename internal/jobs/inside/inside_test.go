package inside

import (
	"os/exec"
	"testing"
	"time"

	"cucriu/hooks/config"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/proc"
)

// TestTheJobIsRecoveredWhenCriuHasEnded: of a dump that was killed, criu may be the last one to go, or its watcher. Who is told that the job is
// back removes the files into which criu writes, and from which the job would have to be restored if the watcher was killed, too.
func TestTheJobIsRecoveredWhenCriuHasEnded(t *testing.T) {
	for name, isWatched := range map[string]bool{"the watcher was killed, too": false, "the watcher lives": true} {
		t.Run(name, func(t *testing.T) {
			criu, endCriu := sleeper(t)
			record := journal.Record{Kind: journal.KindDump, Criu: criu, ImageDir: t.TempDir()}
			endWatcher := func() {}
			if isWatched {
				var watcher proc.Ident
				watcher, endWatcher = sleeper(t)
				record.Watcher = &watcher
			}
			settings := config.Default()
			settings.RunDir, settings.Lock.Timeout = t.TempDir(), time.Hour
			env := session.Of(&config.Hook{Config: settings})
			s, err := env.NewSession(record, session.ByCommand, 0)
			if err != nil {
				t.Fatal(err)
			}
			s.Unlock()
			recovered := make(chan error, 1)
			go func() { recovered <- recoverJob(t.Context(), &env.Hook) }()
			select {
			case err := <-recovered:
				t.Fatalf("the job is said to be back, and criu lives: %v", err)
			case <-time.After(200 * time.Millisecond): // the longer, the surer it would be found
			}
			endCriu()
			endWatcher()
			if err := <-recovered; err != nil {
				t.Fatal(err)
			}
			after, err := journal.Read(s.Dir())
			if err != nil || after.Outcome == "" {
				t.Fatalf("the session is open: %v", err)
			}
		})
	}
}

// sleeper is a process, and a function that ends it.
func sleeper(t *testing.T) (id proc.Ident, end func()) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(end)
	id, err := proc.IdentOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return id, end
}
