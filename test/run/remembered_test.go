package run

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs"
	"cucriu/internal/testenv"
)

// again starts a supervisor that is given nothing but these flags.
func (w *world) again(flags ...string) *run {
	w.t.Helper()
	return w.start(w.host.CucriuCommand(append([]string{"run", "--dir", w.dir}, flags...)...), flags)
}

// stops has the job leave, and waits for its supervisor.
func (r *run) stops() {
	r.w.t.Helper()
	r.w.ticks(1)
	r.signal(unix.SIGTERM)
	r.ends(75)
}

// remembers fails the test unless D remembers exactly these options.
func (w *world) remembers(options ...string) {
	w.t.Helper()
	if got, err := jobs.Flags(w.dir); err != nil || !slices.Equal(got, options) {
		w.t.Errorf("D remembers %q (%v), want %q", got, err, options)
	}
}

// TestADirectoryRemembersTheOptionsOfItsJob, and the command: what is named is changed, and what is
// named as it is by default is forgotten.
func TestADirectoryRemembersTheOptionsOfItsJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = nil
		// A default is not remembered, nor is what belongs to one start.
		w.run("--every", "10m", "--keep", "5", "--not-saved", "/a b", "--not-saved", "/c", "--grace", "0s", "--preempt", "TERM,USR1", "--takeover").stops()
		w.remembers("--every=10m0s", "--keep=5", "--not-saved=/a b", "--not-saved=/c", "--preempt=TERM", "--preempt=USR1")

		r := w.again()
		r.says("cucriu: using options of " + w.dir + ": --every 10m --keep 5 --not-saved /a b --not-saved /c --preempt TERM --preempt USR1\n")
		r.says("D resumes from checkpoint")
		w.ticks(1)
		r.signal(unix.SIGUSR1) // a remembered --preempt
		r.ends(75)

		r = w.again("--every", "1h", "--not-saved=", "--preempt", "TERM")
		r.says("cucriu: using options of " + w.dir + ": --keep 5\n")
		r.stops()
		w.remembers("--every=1h0m0s", "--keep=5")

		r = w.again("--keep", "3", "--max-bytes", "0", "--overhead", "0", "--stage", "auto", "--files-limit", "1G", "-q")
		r.stops()
		w.remembers("--every=1h0m0s")
		if said := r.said(); strings.Contains(said, "cucriu: ") {
			t.Errorf("-q was overheard:\n%s", said)
		}

		// A whole command line stands for itself.
		r = w.run("--every", "0")
		r.says("D resumes from checkpoint")
		w.remembers("--every=0s")
		w.finish(r)
	})
}

// TestAnOptionThatIsNotKnownAnyMoreIsNotPassedOver: a job is not run in another way than it was.
func TestAnOptionThatIsNotKnownAnyMoreIsNotPassedOver(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.run("--every", "0").stops()
		testenv.WriteFile(t, filepath.Join(w.dir, "flags.json"), `["--nonsense=1"]`)
		w.again().ends(125, "was run with --nonsense=1, which this cucriu does not accept: give the command and all options again")
		if err := os.Remove(filepath.Join(w.dir, "flags.json")); err != nil { // the first start was killed before it was written
			t.Fatal(err)
		}
		w.again().ends(125, "the options of the job are not known")
		w.finish(w.run("--every", "0"))
	})
}

// TestWhatIsNoJobsDirectoryIsWrongUsage without a command, and stays as it was.
func TestWhatIsNoJobsDirectoryIsWrongUsage(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		const says = " contains no job yet: specify the command to run"
		w.again().ends(2, w.dir+says)
		testenv.WriteFile(t, w.dir, "")
		w.again().ends(2, w.dir+says)
		w.dir = filepath.Join(w.dir, "below")
		w.again().ends(2, w.dir+says)
		w.dir = t.TempDir()
		w.again().ends(2, w.dir+says)
		if files := glob(w.dir, "*"); len(files) > 0 {
			t.Errorf("left over: %v", files)
		}
	})
}

// TestDirectoriesAreMadeForAJob that runs, with those above, and removed if it is refused.
func TestDirectoriesAreMadeForAJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		base := w.dir
		w.dir = filepath.Join(base, "a", "b")
		right := w.command
		w.command = []string{filepath.Join(w.work, "nothing")}
		w.run().ends(127, "no such file")
		w.adopts(os.Getpid()).ends(125, "cannot be adopted, and was not touched")
		if testenv.Exists(base) {
			t.Errorf("left over: %v", glob(base, "*"))
		}
		w.command = right
		r := w.run("--every", "0", "--name", "D")
		w.ticks(1)
		for dir, mode := range map[string]os.FileMode{base: 0o755, filepath.Dir(w.dir): 0o755, w.dir: 0o700} {
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s: %v %v, want %v", dir, info.Mode(), err, mode)
			}
		}
		w.finish(r)
	})
}
