package jobs

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/life"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/records"
)

// openedCore is the core of a supervisor that owns the store of its directory.
func openedCore(t *testing.T) *core {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "D")
	s, err := store.Open(dir, store.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	c := newCore(nil, Options{Dir: dir, Messages: io.Discard})
	c.store = s
	return c
}

// TestAJobThatRunsInAnotherDirectoryIsNotStartedHere: its directory was removed, replaced or hidden.
func TestAJobThatRunsInAnotherDirectoryIsNotStartedHere(t *testing.T) {
	folder := t.TempDir()
	runs := Local{Name: "train", Dir: "/job", State: StateRunning}
	if err := localKind.Write(folder, runs); err != nil {
		t.Fatal(err)
	}
	alive, err := os.OpenFile(filepath.Join(folder, "alive"), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.Flock(int(alive.Fd()), unix.LOCK_EX) // as the first process of a sandbox has it
	}
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	known, err := readLocal(folder)
	if err != nil || !known.alive {
		t.Fatal(known, err)
	}
	if p, err := findAlive(Options{Dir: t.TempDir()}, folder, known); err == nil || p != nil {
		t.Errorf("%v, %v", p, err)
	}
	alive.Close()
	if p, err := findAlive(Options{Dir: t.TempDir()}, folder, known); err != nil || p != nil {
		t.Errorf("it has ended meanwhile: %v, %v", p, err)
	}
}

// TestAJobWaitsUntilAnotherHostMustHaveEndedIt: only there can somebody see that it has.
func TestAJobWaitsUntilAnotherHostMustHaveEndedIt(t *testing.T) {
	ended := errors.New("given up")
	for name, test := range map[string]struct {
		fence   string // what was there before
		sandbox bool   // one was left there
		waits   bool
	}{
		"a new job":             {"", true, false},
		"it ran elsewhere":      {"0-0-0-0 1 1 1\n", true, true},
		"it was ended properly": {"0-0-0-0 1 1 1\n", false, false},
	} {
		c := openedCore(t)
		if test.fence != "" {
			if err := os.WriteFile(filepath.Join(c.Dir, fenceName), []byte(test.fence), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if test.sandbox {
			if err := os.Mkdir(filepath.Join(c.Dir, sandboxPrefix+"1"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(ended)
		_, err := (&lease{core: c}).raiseFence(ctx)
		if errors.Is(err, ended) != test.waits || !test.waits && err != nil {
			t.Errorf("%s: %v, waits %v", name, err, test.waits)
		}
	}
}

// TestASupervisorThatHasLostItsJobKnowsIt by the owner of the job's directory.
func TestASupervisorThatHasLostItsJobKnowsIt(t *testing.T) {
	c := openedCore(t)
	c.sandbox = &sandbox.Sandbox{Record: sandbox.Record{Running: true}}
	s := &supervisor{core: c, life: life.State{Phase: life.Running}}
	if e := s.lookAround(); e.Fenced {
		t.Errorf("nobody has taken it: %v", e.err)
	}
	owner, err := c.store.Owner()
	if err != nil {
		t.Fatal(err)
	}
	owner.Generation, owner.Token = owner.Generation+1, "another"
	if err := (records.Kind[store.Owner]{Name: "owner.json"}).Write(c.Dir, owner); err != nil {
		t.Fatal(err)
	}
	if e := s.lookAround(); !e.Fenced || !errors.Is(e.err, store.ErrFenced) {
		t.Errorf("fenced %v, %v", e.Fenced, e.err)
	}
}
