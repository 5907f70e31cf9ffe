package session

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/hooks/config"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/proc"
)

// testEnv has a run directory of its own.
func testEnv(t *testing.T) *Env {
	t.Helper()
	env := Of(new(config.Hook))
	env.Config.RunDir = t.TempDir()
	return env
}

// this is this program's process, and another one that has ended: its pid was taken again.
func this(t *testing.T) (self *proc.Process, ended proc.Ident) {
	t.Helper()
	self, err := proc.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { self.Close() })
	ended = self.Ident
	ended.StartTime++
	return self, ended
}

// TestAStepIsWrittenDownBeforeItBegins: whoever comes after a kill undoes what the journal names.
func TestAStepIsWrittenDownBeforeItBegins(t *testing.T) {
	env, failed := testEnv(t), errors.New("no")
	self, _ := this(t)
	s, err := env.NewSession(journal.Record{Kind: journal.KindDump, Criu: self.Ident}, ByCommand, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Unlock()
	var begun []journal.Step
	step := func(name journal.Step, err error) Step {
		return Step{Name: name, Do: func(context.Context) error {
			written, readErr := journal.Read(s.Dir())
			if readErr != nil {
				t.Fatal(readErr)
			}
			begun = append(begun, written.Step)
			return err
		}}
	}
	steps := []Step{step(journal.StepLock, nil), step(journal.StepStop, failed), step(journal.StepMove, nil)}
	err = s.DoSteps(t.Context(), steps)
	if want := []journal.Step{journal.StepLock, journal.StepStop}; !slices.Equal(begun, want) || !errors.Is(err, failed) {
		t.Errorf("%v (%v), want %v", begun, err, want)
	}
}

// TestAClaimedDirectoryIsNotClaimedAgain, unless an earlier dump of the same tree has it, which is waited for.
func TestAClaimedDirectoryIsNotClaimedAgain(t *testing.T) {
	env, dir := testEnv(t), t.TempDir()
	self, other := this(t)
	s, err := env.NewSession(journal.Record{
		Kind: journal.KindDump, Criu: other, ImageDir: dir,
		Members: []journal.Member{{Process: inspect.Process{Ident: self.Ident}}},
	}, ByCommand, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Unlock()
	locked, err := os.Open(dir)
	if err == nil {
		err = unix.Flock(int(locked.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer locked.Close()
	cmd := exec.Command("sleep", "1000") // stands for a criu
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	criu, err := proc.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer criu.Close()
	claims := &criuutil.Criu{Ident: criuutil.Ident(criu.Ident)}
	c := &ImageClaim{Env: env, Criu: claims, Dir: dir, Name: dir, Root: self.PID}
	defer c.Close()
	if err := c.Take(t.Context(), false); err != nil || c.File != nil {
		t.Errorf("an earlier dump of the same tree has it: %v, %v", c.File, err)
	}
	err = c.Take(t.Context(), true)
	if err == nil || !strings.Contains(err.Error(), "in use by a dump") || c.File != nil {
		t.Errorf("claimed beside another dump: %v, %v", c.File, err)
	}
	locked.Close()
	if err := c.Take(t.Context(), true); err != nil || c.File == nil {
		t.Errorf("not claimed, although nobody has it: %v", err)
	}
}

// TestADirectoryWithTheOnlyCopyIsNotGivenAway: a job whose memory was dropped is brought back from there.
func TestADirectoryWithTheOnlyCopyIsNotGivenAway(t *testing.T) {
	for name, test := range map[string]struct {
		dropped bool
		outcome journal.Outcome
		files   bool
		needed  bool
	}{
		"the memory is there, too": {files: true},
		"the only copy":            {dropped: true, files: true, needed: true},
		"the job is back":          {dropped: true, files: true, outcome: journal.OutcomeRunning},
		"nothing is left there":    {dropped: true},
	} {
		t.Run(name, func(t *testing.T) {
			env, dir := testEnv(t), t.TempDir()
			self, criu := this(t)
			listing := &pages.Listing{ID: "0123456789abcdef", Bytes: 1, IndexBytes: 4128, ShardBytes: []int64{4097}}
			member := journal.Member{
				Process: inspect.Process{Ident: self.Ident, ImagePID: 8},
				Pages:   &journal.MemberPages{WatcherFD: journal.FirstWatcherFD, Listing: listing, Dropped: test.dropped},
			}
			s, err := env.NewSession(journal.Record{
				Kind: journal.KindDump, Step: journal.StepDrop, Criu: criu, ImageDir: dir, Members: []journal.Member{member},
			}, ByCommand, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Unlock()
			if s.Outcome = test.outcome; s.Save() != nil {
				t.Fatal("not saved")
			}
			for _, file := range listing.Names(8) {
				if test.files {
					if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := CheckUnneeded(env.Config.RunDir, dir, dir, self.Ident); (err != nil) != test.needed {
				t.Errorf("refused %v, want %v", err, test.needed)
			}
		})
	}
}
