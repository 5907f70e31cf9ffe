package inside

import (
	"os/exec"
	"testing"
	"time"

	"cucriu/hooks/config"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
	"cucriu/internal/session"
)

// TestTheJobIsRecoveredWhenCriuHasEnded: of a killed dump whose watcher was killed, too, criu may be the last one to go. Who is told that the
// job is back removes the files from which it would have to be restored.
func TestTheJobIsRecoveredWhenCriuHasEnded(t *testing.T) {
	criu := exec.Command("sleep", "1000")
	if err := criu.Start(); err != nil {
		t.Fatal(err)
	}
	defer criu.Wait()
	defer criu.Process.Kill()
	ident, err := proc.IdentOf(criu.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	settings := config.Default()
	settings.RunDir, settings.Lock.Timeout = t.TempDir(), time.Hour
	env := (&session.Env{Config: settings}).Filled()
	s, err := env.NewSession(journal.Record{Kind: journal.KindDump, Criu: ident, ImageDir: t.TempDir()}, session.ByCommand, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.Unlock()
	recovered := make(chan error, 1)
	go func() { recovered <- recoverJob(t.Context(), env) }()
	select {
	case err := <-recovered:
		t.Fatalf("the job is said to be back, and criu lives: %v", err)
	case <-time.After(200 * time.Millisecond): // the longer, the surer it would be found
	}
	_ = criu.Process.Kill()
	_ = criu.Wait()
	if err := <-recovered; err != nil {
		t.Fatal(err)
	}
	after, err := journal.Read(s.Dir())
	if err != nil || after.Outcome == "" {
		t.Fatalf("the session is open: %v", err)
	}
}
