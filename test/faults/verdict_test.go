package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"cucriu/internal/core/journal"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/testenv"
)

// state is what became of the job.
type state string

const (
	runs  state = "runs"
	waits state = "waits" // stopped, locked or checkpointed
	gone  state = "gone"
	parts state = "is there in parts"
)

// verdict waits until no process of ours is at work any more, lets cucriu recover close
// what is left open, checks everything that was promised, and returns what became of the
// job.
func (c *cell) verdict() string {
	c.t.Helper()
	if c.fault == runFull {
		// The promise holds while nothing can be recorded, too. A process that comes after
		// the hook then reads a journal that says less than was done, and leaves it at
		// that.
		testenv.Eventually(c.t, 2*testenv.Soon, "the job runs or has ended although the run directory is full", func() bool {
			now := c.state()
			return testenv.Exists(filepath.Join(c.host.RunDir, "ballast")) && (now == runs || now == gone)
		})
		ran := c.state() == runs
		time.Sleep(300 * time.Millisecond)
		if ran && c.state() == gone {
			c.t.Error("the job, which was back, is gone")
		}
	}
	c.makeRoom(c.t)
	if c.scene != criuRestores || c.fault != allKilled { // what criu has created waits for cucriu recover
		c.atRest(c.t)
	}
	c.happened()

	before, wasOpen := c.state(), c.open()
	var outcome string
	if wasOpen {
		if out, err := c.world.host.Cucriu("recover"); err != nil {
			c.t.Errorf("cucriu recover: %v\n%s", err, out)
		}
		if c.open() {
			c.t.Error("a journal is open after cucriu recover")
		}
	}
	if out, err := c.world.host.Cucriu("recover"); err != nil || !strings.Contains(out, "nothing to recover") {
		c.t.Errorf("a second cucriu recover: %v\n%s", err, out)
	}
	now := c.state()
	if c.restores() {
		outcome = c.restored(now)
	} else {
		outcome = c.dumped(now)
	}
	switch {
	case wasOpen && now == before:
		outcome += "; recover closes the journal"
	case wasOpen:
		outcome += " after recover"
	}
	if c.harmless(c.fault) && outcome != c.undisturbed() {
		c.t.Errorf("%s, and the job: %s; want: %s", c.fault, outcome, c.undisturbed())
	}
	c.whole(now)
	c.neighbours.check(c.t)
	return outcome
}

// explain shows what a failed cell has left behind.
func (c *cell) explain() {
	if !c.t.Failed() {
		return
	}
	c.t.Logf("criu: %v\n%s", c.err, c.log)
	for _, s := range c.sessions() {
		c.t.Logf("session %s: step %s, outcome %q: %s", s.Kind, s.Step, s.Outcome, s.Message)
	}
	c.t.Logf("watcher: %s", c.watcherLogs())
	for _, program := range []string{c.work, c.criu, c.world.host.HookBin} {
		c.t.Logf("%s: processes %v", filepath.Base(program), testenv.Running(program))
	}
}

// missed is what is said of a deadline that has passed.
var missed = regexp.MustCompile(`deadline|lock\.timeout|did not end in time: (checkpoint|restore)\.timeout`)

// happened fails the test if the fault did not happen.
func (c *cell) happened() {
	c.t.Helper()
	switch {
	case c.byTest():
	case c.fault == deadline && c.slow != nil:
		if !missed.MatchString(c.log + c.watcherLogs()) {
			c.t.Error("no deadline was missed")
		}
	default:
		if !c.fired() {
			c.t.Error("the fault did not happen")
		}
	}
}

// fired reports whether the hook has reached the failpoint, if there is one.
func (c *cell) fired() bool {
	byHook := testenv.Exists(filepath.Join(c.marks, c.point))
	byScript := testenv.Exists(filepath.Join(c.marks, scriptMark))
	switch {
	case c.moment != nil, c.fault == calledTwice && !c.midStage:
		return byScript
	case c.fault == calledTwice:
		return byHook && byScript
	}
	return byHook
}

func (c *cell) watcherLogs() string {
	files, _ := filepath.Glob(filepath.Join(c.host.RunDir, "sessions", "*", "watcher.log"))
	var logs strings.Builder
	for _, file := range files {
		if info, err := os.Stat(file); err == nil && info.ModTime().After(c.since) {
			data, _ := os.ReadFile(file)
			logs.Write(data)
		}
	}
	return logs.String()
}

// sessions lists the sessions that the cell has made for its own job.
func (c *cell) sessions() []*journal.Session {
	return slices.DeleteFunc(c.world.host.Sessions(), func(s *journal.Session) bool {
		return s.Created.Before(c.since) || c.neighbours.owns(s)
	})
}

// survivors returns how many CUDA processes a living job must have.
func (c *cell) survivors() int {
	if c.fault == targetKilled {
		return 1
	}
	return 2
}

// state returns the state of the job as it is now.
func (c *cell) state() state {
	c.t.Helper()
	switch n := len(c.alive()); {
	case n == 0 && len(testenv.NotEnding(testenv.Running(c.criu))) == 0: // what criu creates is criu at first
		return gone
	case n < 1+c.survivors():
		return parts
	case c.held(c.t) != "":
		return waits
	}
	return runs
}

// dumped judges a dump: either the job runs on, or it was dumped and can be restored.
func (c *cell) dumped(now state) string {
	c.t.Helper()
	sessions := c.sessions()
	switch {
	case now == runs && c.err == nil:
		c.t.Error("criu says that it dumped the job, and the job runs on")
	case now == runs && len(sessions) == 0:
		return "refused, nothing touched"
	case now == runs && sessions[len(sessions)-1].Outcome != journal.OutcomeRunning:
		c.t.Errorf("the job runs, and its journal says %q", sessions[len(sessions)-1].Outcome)
	case now == runs && c.fault == targetKilled:
		return "the other runs on"
	case now == runs:
		return "runs on"
	case now == gone && (len(sessions) == 0 || sessions[len(sessions)-1].Outcome != journal.OutcomeDumped):
		c.t.Error("the job is gone, and its journal does not say that it was dumped")
	case now == gone && c.restore() < 2:
		return "dumped without it"
	case now == gone:
		return "dumped"
	default:
		c.t.Errorf("the job %s: %s", now, c.held(c.t))
	}
	return "violation"
}

// restored judges a restore: either the job runs, or nothing is left of it and the image
// can be restored.
func (c *cell) restored(now state) string {
	c.t.Helper()
	var outcome journal.Outcome
	if sessions := c.sessions(); len(sessions) > 0 {
		outcome = sessions[len(sessions)-1].Outcome
	}
	switch {
	case now == runs && outcome != journal.OutcomeRunning:
		c.t.Errorf("the job runs, and its journal says %q", outcome)
	case now == runs && c.fault == targetKilled:
		return "the other runs on"
	case now == runs:
		return "runs"
	case now == gone && outcome != "" && outcome != journal.OutcomeGone && outcome != journal.OutcomeKilled:
		c.t.Errorf("the job is gone, and its journal says %q", outcome)
	case now == gone && c.created:
		c.restore()
		return "ended; the image restores"
	case now == gone:
		c.restore()
		return "refused, nothing created"
	default:
		c.t.Errorf("the job %s: %s", now, c.held(c.t))
	}
	return "violation"
}

// restore restores the job from the image that the cell has left, and returns how many CUDA
// processes it had.
func (c *cell) restore() int {
	c.t.Helper()
	manifest, err := imagedir.ReadManifest(c.images)
	if err != nil {
		c.t.Fatal(err)
	}
	testenv.Eventually(c.t, testenv.Soon, "the pids of the job are free", func() bool {
		return len(testenv.Running(c.work))+len(testenv.Running(loader))+len(testenv.Running(c.criu)) == 0
	})
	if c.image != nil {
		c.image.Close()
	}
	good := c.world.host.For(c.t)
	good.Faults()
	if c.restores() {
		c.resetFiles(c.t)
	}
	if c.scene == criuRestores && c.fault == stepFails {
		c.copy(c.t, c.good, c.images) // it was damaged to make criu fail
	}
	if run := good.TryRestore(c.images); run.Err != nil {
		c.t.Errorf("the image does not restore: %v\n%s", run.Err, run.Lines())
	}
	c.atRest(c.t)
	return len(manifest.Processes)
}

// whole fails the test unless exactly one copy of the job runs, with its data intact and
// every thread free, and nothing of ours is left.
func (c *cell) whole(now state) {
	c.t.Helper()
	if c.t.Failed() {
		return
	}
	processes := c.survivors()
	if manifest, err := imagedir.ReadManifest(c.images); now == gone && err == nil {
		processes = len(manifest.Processes)
	}
	c.job.For(c.t, processes).Runs()
	if got := len(c.alive()); got != 1+processes {
		c.t.Errorf("%d processes of the job run, want %d", got, 1+processes)
	}
	if held := c.held(c.t); held != "" {
		c.t.Error(held)
	}
	if c.open() {
		c.t.Error("a journal is open in the end")
	}
	c.tidy(now)
	if left := slices.Concat(testenv.Running(c.world.host.HookBin), testenv.Running(c.criu)); len(left) > 0 {
		c.t.Errorf("processes %v are left", left)
	}
}

// tidy fails the test if something is left of what is over: saved registers of borrowed or
// parked threads, or the memory in a failed dump.
func (c *cell) tidy(now state) {
	c.t.Helper()
	left, _ := filepath.Glob(filepath.Join(c.host.RunDir, "sessions", "*", "threads-*"))
	sessions := c.sessions()
	complete := len(sessions) > 0 && sessions[len(sessions)-1].Step == "dumped" // before it failed
	if len(sessions) > 0 && !c.restores() && now == runs && !complete {
		files, _ := filepath.Glob(filepath.Join(c.images, "cucriu-pages-*"))
		left = append(left, files...)
		for _, pid := range slices.Concat(c.alive(), workers()) {
			if file := filepath.Join(c.host.RunDir, "sessions", sessions[len(sessions)-1].Name(), fmt.Sprintf("parked-%d.json", pid)); testenv.Exists(file) {
				left = append(left, file)
			}
		}
	}
	if len(left) > 0 {
		c.t.Errorf("left behind: %v", left)
	}
}
