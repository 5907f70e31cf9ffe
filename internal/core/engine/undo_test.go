package engine

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"cucriu/hooks/config"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/proc"
)

// testSession is a session that this program is at work on.
func testSession(t *testing.T, kind journal.Kind) *session.Session {
	t.Helper()
	self, err := proc.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	h := session.Of(&config.Hook{Config: config.Config{RunDir: t.TempDir()}})
	s, err := h.NewSession(journal.Record{Kind: kind, Criu: self.Ident, ImageDir: t.TempDir()}, session.ByCommand, 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestARefusalAfterTheLockIsAFailure checks that nobody says of it that nothing was
// touched.
func TestARefusalAfterTheLockIsAFailure(t *testing.T) {
	refusal := preflight.Findings{{Name: preflight.FindingForkedChild, Severity: preflight.SeverityError, Message: "a child"}}.Err()
	for _, step := range []journal.Step{journal.StepNone, journal.StepStop} {
		s := testSession(t, journal.KindDump)
		s.Step = step
		d := &Suspension{Env: session.Of(&config.Hook{Log: slog.New(slog.DiscardHandler)}), Session: s}
		d.Config.Restore.Timeout = ReleaseTimeout
		self, err := proc.Open(1) // init lives
		if err != nil {
			t.Fatal(err)
		}
		defer self.Close()
		s.Members = []journal.Member{{Process: inspect.Process{Ident: self.Ident, Name: "init"}}}
		err = d.Failed(refusal)
		untouched := step == journal.StepNone
		if preflight.Refused(err) != untouched {
			t.Errorf("refused at step %q, and Refused says %v", step, preflight.Refused(err))
		}
		if errors.As(err, new(*preflight.RefusedError)) != untouched || strings.Contains(err.Error(), "nothing was touched") != untouched {
			t.Errorf("refused at step %q: %v", step, err)
		}
		if strings.Contains(err.Error(), "the job keeps running") == untouched || !strings.Contains(err.Error(), "a child") {
			t.Errorf("refused at step %q: %v", step, err)
		}
		if strings.Contains(s.Message, "nothing was touched") != untouched || s.Outcome != journal.OutcomeRunning {
			t.Errorf("refused at step %q, the journal says %s: %s", step, s.Outcome, s.Message)
		}
	}
}

// TestARefusalAfterTheThawSaysSo checks that it does not say that nothing was touched.
func TestARefusalAfterTheThawSaysSo(t *testing.T) {
	s := testSession(t, journal.KindDump)
	thawed := []proc.Freezer{{Dir: t.TempDir() + "/gone"}}
	d := &Suspension{Env: session.Of(&config.Hook{Log: slog.New(slog.DiscardHandler)}), Session: s, Thawed: thawed}
	err := d.Failed(preflight.Findings{{Name: preflight.FindingCUDAState, Severity: preflight.SeverityError, Message: "is locked"}}.Err())
	if preflight.Refused(err) {
		t.Error("a refusal, of which nothing was touched")
	}
	for _, text := range []string{err.Error(), s.Message} {
		if strings.Contains(text, "nothing was touched") || !strings.Contains(text, "the tree was thawed for a moment") {
			t.Errorf("it says: %s", text)
		}
	}
}
