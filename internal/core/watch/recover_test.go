package watch

import (
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/journal"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// TestWhoIsStoppedIsNotWaitedFor: somebody must continue it, be it criu, the watcher or the command.
func TestWhoIsStoppedIsNotWaitedFor(t *testing.T) {
	sleep := exec.Command("sleep", "1000")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	}()
	id, err := proc.IdentOf(sleep.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	records := map[string]*journal.Record{
		"criu":    {Criu: id, Step: journal.StepDumping},
		"watcher": {Watcher: &id, Step: journal.StepDumping},
		"command": {Client: &id, Step: journal.StepDumping},
	}
	for name, r := range records {
		if text := atWork(r, "its hook").Error(); !strings.HasPrefix(text, "its hook is working on it (step ") {
			t.Errorf("%s runs: %s", name, text)
		}
	}
	if err := sleep.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testenv.Soon, "it is stopped", func() bool { stopped, err := proc.Stopped(id.PID); return err == nil && stopped })
	for name, r := range records {
		if text := atWork(r, "its hook").Error(); !strings.Contains(text, "is stopped: kill -CONT ") {
			t.Errorf("%s is stopped: %s", name, text)
		}
	}
}
