package watch

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/hooks/config"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/proc"
)

// identOf returns the identity of a process, and that of one which has ended: its pid was taken again.
func identOf(t *testing.T, pid int) (id, ended proc.Ident) {
	t.Helper()
	id, err := proc.IdentOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	ended = id
	ended.StartTime++
	return id, ended
}

// restoreOf makes the session of a restore.
func restoreOf(t *testing.T, r journal.Record) *session.Session {
	t.Helper()
	env := session.Of(new(config.Hook))
	env.Config.RunDir = t.TempDir()
	env.Config.Driver.Library = "/nonexistent"
	gpu := cudackpt.GPU{UUID: cudackpt.UUID{1}}
	r.Kind, r.Manifest = journal.KindRestore, &imagedir.Manifest{
		Version: 1, DriverVersion: "1", RootPID: 7,
		Processes: []imagedir.Process{{PID: 7, GPUs: []cudackpt.GPU{gpu}}},
	}
	s, err := env.NewSession(r, session.ByCommand, 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestOnlyAHolderThatIsKnownToHaveEndedIsGone: it may be in a container.
func TestOnlyAHolderThatIsKnownToHaveEndedIsGone(t *testing.T) {
	self, ended := identOf(t, os.Getpid())
	elsewhere := ended
	elsewhere.PIDNamespace++
	for holder, want := range map[proc.Ident]bool{self: false, ended: true, elsewhere: false} {
		if gone, err := abandoned(&journal.Record{Hold: &journal.Hold{Holder: holder}}); err != nil || gone != want {
			t.Errorf("%v: gone %v, %v; want %v", holder, gone, err, want)
		}
	}
}

// TestADecisionIsOnDiskBeforeItIsCarriedOut: another program may have to go on with it.
func TestADecisionIsOnDiskBeforeItIsCarriedOut(t *testing.T) {
	self, _ := identOf(t, os.Getpid())
	s := restoreOf(t, journal.Record{Criu: self, Hold: &journal.Hold{ID: "a", Holder: self, IfAbandoned: journal.EndHere}})
	defer s.Unlock()
	if err := decide(s, journal.RunHere); err != nil {
		t.Fatal(err)
	}
	if written, err := journal.Read(s.Dir()); err != nil || written.Hold.Decision != journal.RunHere {
		t.Errorf("%+v, %v", written.Hold, err)
	}
}

// TestWhatHasEndedIsNotPromised: the source would end the only copy that is whole.
func TestWhatHasEndedIsNotPromised(t *testing.T) {
	self, ended := identOf(t, os.Getpid())
	for name, test := range map[string]struct {
		root, member proc.Ident
		promised     bool
	}{
		"all live":          {self, self, true},
		"the root ended":    {ended, self, false},
		"a process's ended": {self, ended, false},
	} {
		s := restoreOf(t, journal.Record{
			Criu: self, Root: &test.root, Restored: true,
			Members: []journal.Member{{Process: inspect.Process{Ident: test.member}}},
			Hold:    &journal.Hold{ID: "a", Holder: self, IfAbandoned: journal.EndHere},
		})
		s.Unlock()
		err := Promise(t.Context(), s.Env, "a")
		written, readErr := journal.Read(s.Dir())
		if readErr != nil {
			t.Fatal(readErr)
		}
		promised := written.Hold.IfAbandoned == journal.StayHeld
		if promised != test.promised || (err == nil) != test.promised {
			t.Errorf("%s: promised %v, %v", name, promised, err)
		}
	}
}

// TestARestoreWhoseCriuWasKilledGoesNoFurther, although its processes are stopped as if criu were through: whoever
// saw criu die may have restored the image elsewhere.
func TestARestoreWhoseCriuWasKilledGoesNoFurther(t *testing.T) {
	root, _ := identOf(t, sleeper(t))
	_, criu := identOf(t, os.Getpid())
	process, err := proc.Reopen(root)
	if err == nil {
		err = errors.Join(process.Signal(unix.SIGSTOP), proc.WaitStopped(t.Context(), process), process.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	member := journal.Member{Process: inspect.Process{Ident: root}}
	s := restoreOf(t, journal.Record{Criu: criu, Root: &root, Members: []journal.Member{member}})
	defer s.Unlock()
	if s.Step = journal.StepPreResume; !criuIsThrough(&s.Record) {
		t.Fatal("criu is not through")
	}
	err = finishRestore(t.Context(), s)
	if err != nil || s.Outcome != journal.OutcomeKilled || root.Alive() ||
		!strings.Contains(s.Message, "in the middle of the restore") {
		t.Errorf("%v; %s: %s; alive %v", err, s.Outcome, s.Message, root.Alive())
	}
}
