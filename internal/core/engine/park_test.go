package engine

import (
	"errors"
	"log/slog"
	"os"
	"testing"

	"cucriu/hooks/config"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/proc"
)

// TestAProcessThatIsHalfParkedIsNotDumped checks that such a process fails the dump: its
// image would lack what the threads need.
func TestAProcessThatIsHalfParkedIsNotDumped(t *testing.T) {
	process, err := proc.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	d := &Suspension{Env: session.Of(&config.Hook{Log: slog.New(slog.DiscardHandler)}), Session: testSession(t, journal.KindDump)}
	cannot := errors.New("this kernel cannot")
	if err := d.ParkedOrStopped(t.Context(), process, cannot); err != nil {
		t.Fatalf("a process that cannot be parked ends the dump: %v", err)
	}
	if err := os.WriteFile(d.Session.ParkedFile(process.PID), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.ParkedOrStopped(t.Context(), process, cannot); !errors.Is(err, cannot) {
		t.Fatalf("a process that is half parked is dumped: %v", err)
	}
}
