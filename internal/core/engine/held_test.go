package engine

import (
	"errors"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
)

// TestNothingIsCheckpointedThatRuns: without its GPU state it would die.
func TestNothingIsCheckpointedThatRuns(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	process, err := proc.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	target := &Target{Process: process}
	if err := target.requireHeld(); !errors.Is(err, inject.ErrNotStopped) {
		t.Errorf("it runs: %v", err)
	}
	target.Parked = new(inject.Parked)
	if err := target.requireHeld(); err != nil {
		t.Errorf("it is parked: %v", err)
	}
	target.Parked = nil
	if err := errors.Join(process.Signal(unix.SIGSTOP), proc.WaitStopped(t.Context(), process)); err != nil {
		t.Fatal(err)
	}
	if err := target.requireHeld(); err != nil {
		t.Errorf("it is stopped: %v", err)
	}
}

// TestAHeldRestoreWaitsForItsDecision: the source may have the other copy run.
func TestAHeldRestoreWaitsForItsDecision(t *testing.T) {
	for decision, want := range map[journal.Decision]error{journal.Undecided: ErrHeld, journal.RunHere: nil} {
		s := testSession(t, journal.KindSuspend)
		s.Kind, s.Manifest = journal.KindRestore, new(imagedir.Manifest)
		s.Hold = &journal.Hold{ID: "a", IfAbandoned: journal.EndHere, Decision: decision}
		s.Env = session.Of(&s.Env.Hook)
		s.Env.Config.Restore.Timeout = ReleaseTimeout
		if err := BringBack(t.Context(), nil, s, nil); !errors.Is(err, want) {
			t.Errorf("decision %q: %v, want %v", decision, err, want)
		}
		if !s.Restored {
			t.Errorf("decision %q: it is not noted that the GPU state is there", decision)
		}
		s.Unlock()
	}
}
