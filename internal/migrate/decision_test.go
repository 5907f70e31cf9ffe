package migrate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/hooks/config"
	"cucriu/internal/jobs"
	"cucriu/internal/kit/rundir"
	"cucriu/internal/migrate/commit"
)

// fakeArrival is an arrival that notes what is decided.
type fakeArrival struct {
	now     commit.DestinationState
	known   bool
	decided commit.DestinationState
}

func (a *fakeArrival) state() (commit.DestinationState, bool, error) { return a.now, a.known, nil }

func (a *fakeArrival) decide(_ context.Context, next commit.DestinationState) error {
	a.now, a.decided = next, next
	return nil
}

// TestASourceIsToldOnlyOfWhatWasThere: an end of what was never here says nothing about the job.
func TestASourceIsToldOnlyOfWhatWasThere(t *testing.T) {
	runs := []commit.Action{commit.LetRun, commit.SayRunning, commit.Close}
	for name, test := range map[string]struct {
		now     commit.DestinationState
		known   bool
		event   commit.Event
		do      []commit.Action
		decided commit.DestinationState
	}{
		"complete":                     {commit.Receiving, true, commit.Complete, []commit.Action{commit.SayReady}, commit.Promised},
		"committed":                    {commit.Promised, true, commit.Commit, runs, commit.Go},
		"failed before anything began": {commit.Receiving, false, commit.Failed, nil, commit.Dropped},
		"committed, and unknown here":  {commit.Receiving, false, commit.Commit, nil, ""},
		"committed, and ended here":    {commit.Dropped, true, commit.Commit, nil, ""},
	} {
		a := &fakeArrival{now: test.now, known: test.known}
		do, err := answerEvent(t.Context(), a, test.event)
		if err != nil || !slices.Equal(do, test.do) || a.decided != test.decided {
			t.Errorf("%s: %v, decided %q, %v; want %v, %q", name, do, a.decided, err, test.do, test.decided)
		}
	}
}

// TestAJobThatRunsHereHasNotLeft: the destination would start it once more.
func TestAJobThatRunsHereHasNotLeft(t *testing.T) {
	dir := t.TempDir()
	hook := &hooks.Hook{Config: config.Default()}
	hook.Config.RunDir = t.TempDir()
	s := newJobSource(hook, jobs.NewLeaving(hook, jobs.Local{Dir: dir, Name: "train"}), Options{})
	s.result.ID = "0123456789abcdef"
	m := jobs.Move{ID: s.result.ID, State: jobs.MoveLeaving, Peer: "b"}
	if err := errors.Join(m.Write(dir), jobs.NoteLocal(hook.Config.RunDir, dir, jobs.StateRunning)); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(hook.Config.RunDir, rundir.Jobs, jobs.Key(dir))
	alive, err := os.OpenFile(filepath.Join(folder, "alive"), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.Flock(int(alive.Fd()), unix.LOCK_EX) // as the first process of a sandbox has it
	}
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	if err := s.decide(t.Context(), commit.End); err == nil {
		t.Error("it has left, and runs here")
	}
	alive.Close()
	if err := s.decide(t.Context(), commit.End); err != nil {
		t.Errorf("it has ended: %v", err)
	}
	if state, err := s.state(); err != nil || state != commit.End {
		t.Errorf("%v, %v", state, err)
	}
}
