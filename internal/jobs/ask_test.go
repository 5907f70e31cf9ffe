package jobs

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/life"
	"cucriu/internal/kit/proc"
)

// newJobDir makes the directory of a job that this host knows by a name.
func newJobDir(t *testing.T, runDir, path, name string, change func(*Local)) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	r := record{Version: recordVersion, Name: name, Command: []string{"true"}}
	if err := r.write(path); err != nil {
		t.Fatal(err)
	}
	if change == nil {
		return path
	}
	folder := localDir(runDir, path)
	l := Local{Name: name, Dir: path, PID: 4711, State: StateRunning, Next: time.Now()}
	change(&l)
	if err := errors.Join(os.MkdirAll(folder, 0o700), localKind.Write(folder, l)); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestJobsAreFoundByNameAndByDirectory(t *testing.T) {
	runDir, base := t.TempDir(), t.TempDir()
	t.Chdir(base)
	known := func(*Local) {}
	train := newJobDir(t, runDir, filepath.Join(base, "D"), "train", known)
	one := newJobDir(t, runDir, filepath.Join(base, "one"), "twice", known)
	two := newJobDir(t, runDir, filepath.Join(base, "two"), "twice", known)
	foreign := newJobDir(t, runDir, filepath.Join(base, "foreign"), "of another host", nil)
	if err := os.Symlink(base, filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	for arg, want := range map[string]string{
		"train":    train,
		train:      train,
		"./D":      train,
		"D":        train, // no job has this name
		"link/D":   train,
		"foreign":  foreign,
		"./one/..": "is not the directory of a job",
		"nobody":   "no job on this host is named",
		"./nobody": "is not the directory of a job",
	} {
		found, err := Find(runDir, arg)
		switch {
		case filepath.IsAbs(want) && (err != nil || found.Dir != want):
			t.Errorf("%s: %q %v, want %s", arg, found.Dir, err, want)
		case !filepath.IsAbs(want) && (err == nil || !strings.Contains(err.Error(), want) || !preflight.Refused(err)):
			t.Errorf("%s: %v, want %q", arg, err, want)
		}
	}
	if _, err := Find(runDir, "twice"); err == nil || !strings.Contains(err.Error(), one) || !strings.Contains(err.Error(), two) {
		t.Errorf("a name that two jobs have: %v", err)
	}
}

func TestWhatIsKnownOfAJobIsLookedAtAgain(t *testing.T) {
	self, err := proc.IdentOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	gone := self
	gone.StartTime--
	for name, test := range map[string]struct {
		change func(*Local)
		want   State // "" if it is not listed
	}{
		"its supervisor was killed":             {func(l *Local) { l.Init = &self }, StateUnattended},
		"paused, and its supervisor was killed": {func(l *Local) { l.Init, l.State = &self, StatePaused }, StateUnattended},
		"it has ended since":                    {func(l *Local) { l.Init, l.Command = &self, &gone }, StateUntold},
		"all of it was killed":                  {func(l *Local) { l.Init = &gone }, StateGone},
		"killed when it began":                  {func(l *Local) { l.State = StateBegins }, StateGone},
		"preempted":                             {func(l *Local) { l.Init, l.State = &gone, StatePreempted }, StatePreempted},
		"finished":                              {func(l *Local) { l.Init, l.State = &gone, StateFinished }, StateFinished},
		"its directory was removed":             {func(l *Local) { l.Init, l.State = &gone, StateFinished; os.RemoveAll(l.Dir) }, ""},
		"removed while it runs":                 {func(l *Local) { l.Init = &self; os.RemoveAll(l.Dir) }, StateUnattended},
	} {
		t.Run(name, func(t *testing.T) {
			runDir := t.TempDir()
			newJobDir(t, runDir, filepath.Join(t.TempDir(), "D"), "train", test.change)
			all, err := Locals(runDir)
			if err != nil {
				t.Fatal(err)
			}
			if test.want == "" {
				if len(all) != 0 {
					t.Errorf("it is listed: %+v", all)
				}
				return
			}
			if len(all) != 1 || all[0].State != test.want || all[0].PID != 0 || !all[0].Next.IsZero() {
				t.Errorf("%+v, want %s", all, test.want)
			}
		})
	}
}

func TestThereIsNoSupervisorToAsk(t *testing.T) {
	runDir := t.TempDir()
	for state, says := range map[State]string{
		StateUnattended: "run the same cucriu run command again to resume supervision",
		StateFinished:   "has finished",
		StateStopped:    "was stopped with cucriu jobs stop, and does not run: to resume it, cucriu run --dir /D",
		StateGone:       "does not run: killed: to resume it, cucriu run --dir /D",
		StateEnded:      "does not run: ended: to resume it, cucriu run --dir /D",
		"":              "does not run on this host",
	} {
		_, err := Ask(t.Context(), runDir, Local{Name: "train", Dir: "/D", State: state}, Request{Op: life.AskPause}, nil)
		if !errors.Is(err, ErrNoSupervisor) || !preflight.Refused(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", state, err, says)
		}
	}
}

// TestASupervisorThatIsStoppedIsNotAsked: the kernel takes connections for it, and nobody would ever answer.
func TestASupervisorThatIsStoppedIsNotAsked(t *testing.T) {
	runDir, dir := t.TempDir(), filepath.Join(t.TempDir(), "D")
	newJobDir(t, runDir, dir, "train", func(*Local) {})
	const listens = "import os, socket, sys\nos.chdir(sys.argv[1]) # the path may be too long for bind\n" +
		"s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[2]); s.listen()\n" +
		"print(flush=True)\nc = [s.accept()]\nwhile True: c.append(s.accept())"
	super := exec.Command("python3", "-c", listens, localDir(runDir, dir), socketName)
	out, err := super.StdoutPipe()
	if err = errors.Join(err, super.Start()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = super.Process.Kill()
		_ = super.Wait()
	}()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	find := func(want State) Local {
		t.Helper()
		l, err := Find(runDir, dir)
		if err != nil || l.State != want {
			t.Fatalf("%+v, %v: want %s", l, err, want)
		}
		return l
	}
	halt := func() {
		t.Helper()
		if err := super.Process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		for stopped := false; !stopped; {
			if stopped, err = proc.Stopped(super.Process.Pid); err != nil {
				t.Fatal(err)
			}
		}
	}
	says := fmt.Sprintf("kill -CONT %d", super.Process.Pid)
	l := find(StateRunning)

	answers := make(chan error)
	go func() {
		_, err := Ask(t.Context(), runDir, l, Request{Op: life.AskPause}, nil)
		answers <- err
	}()
	halt() // it may have the request or not: nobody waits for it without a word
	if err := <-answers; err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("%v, want %q", err, says)
	}

	l = find(StateHalted)
	if _, err := Ask(t.Context(), runDir, l, Request{Op: life.AskPause}, nil); !preflight.Refused(err) || !strings.Contains(err.Error(), says) {
		t.Errorf("%v, want a refusal with %q", err, says)
	}
	if err := super.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	find(StateRunning)
}
