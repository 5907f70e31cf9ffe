package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// cell is one fault at one step.
type cell struct {
	row
	fault fault
	*world
	t     *testing.T
	host  *testenv.Host // on which the fault happens
	marks string
	log   string // of criu
	err   error  // of criu
	since time.Time

	created bool   // criu had created processes
	image   *lease // on the image file at which criu waits, if the fault hits criu at its own work
}

// run makes the fault happen and returns what became of the job. On a busy machine, a deadline that a test could wait for
// may have passed before the step: then it is tried again with a longer one.
func (c *cell) run() string {
	defer c.explain()
	for patience := 1; ; patience *= 4 {
		c.begin(c.t, c.row)
		c.try(patience)
		if c.fault != deadline || c.slow != nil || patience > 10 {
			return c.verdict()
		}
		c.atRest(c.t) // else the watcher may yet come to it
		if c.fired() {
			return c.verdict()
		}
	}
}

// try makes the fault happen. Its deadlines are multiples of patience.
func (c *cell) try(patience int) {
	c.since = time.Now()
	c.host, c.marks = c.world.host.For(c.t), c.t.TempDir()
	switch {
	case c.byTest(), c.moment != nil, c.fault == calledTwice && !c.midStage:
	case c.fault == deadline && c.slow != nil:
		c.host.Faults(c.slow...)
	default:
		point := c.point + "=" + c.actions(c.t, c.fault, c.world)
		if c.called {
			rules := filepath.Join(c.host.Dir, "faults")
			point = "dump.move=run " + testenv.Script(c.t, "echo lock return 600 times 1 >"+rules) + "," + point
		}
		c.host.UseFailpoint(point)
		c.host.Setenv("CUCRIU_FAILPOINT_MARKS", c.marks)
	}
	if c.fault == deadline {
		lock, checkpoint := 5, 5
		switch slow := strings.Join(c.slow, " "); {
		case strings.HasPrefix(slow, "lock "):
			lock = 3 // the inspection has as long
		case strings.HasPrefix(slow, "checkpoint "):
			checkpoint = 1
		}
		if c.helps { // the dump succeeds, also on a busy machine
			lock, checkpoint = 60, 30
		}
		c.host.Setenv("CUCRIU_CONFIG", c.host.Config(fmt.Sprintf("version: 1\nlock: {timeout: %ds, try: %ds}\ncheckpoint: {timeout: %ds}\nrestore: {timeout: %ds}\n",
			patience*lock, patience, patience*checkpoint, patience*4)))
	}
	if c.moment != nil {
		c.host.Faults(c.slow...)
	}
	c.runCriu()
}

// runCriu runs criu to its end, which the fault may cause.
func (c *cell) runCriu() {
	c.t.Helper()
	verb, scripts, args := "dump", []string{c.host.HookBin}, []string{"-t", c.job.Root()}
	switch {
	case c.restores():
		verb, args = "restore", []string{"-d"}
	case c.scene == goingBack:
		// criu runs the last script first, so the hook has recorded nothing yet.
		scripts = append(scripts, testenv.Script(c.t, `[ "$CRTOOLS_SCRIPT_ACTION" != post-dump ]`))
	}
	switch {
	case c.fault == calledTwice:
		scripts = append(scripts, c.script(c.stage(), "exec "+c.host.HookBin))
	case c.moment != nil && c.moment.before:
		scripts = append(scripts, c.script(c.moment.stage, c.atMoment()))
	case c.moment != nil:
		scripts = append([]string{c.script(c.moment.stage, c.atMoment())}, scripts...)
	}
	if c.goesOn {
		args = append(args, "-R")
	}
	cmd := c.host.CriuCommandScripts(verb, c.images, scripts, args...)
	logs := c.t.TempDir() // the image directory may be full
	cmd.Args = append(cmd.Args, "-o", filepath.Join(logs, "log"))
	if c.byTest() {
		c.image = c.takeLease()
		c.t.Cleanup(func() { c.image.Close() })
		if err := cmd.Start(); err != nil {
			c.t.Fatal(err)
		}
		c.breakCriu(cmd)
		if c.fault != criuKilled && c.fault != allKilled { // what they leave behind goes on waiting
			c.image.Close()
		}
	} else if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	hung := time.AfterFunc(2*testenv.Soon, func() { _ = cmd.Process.Kill() })
	c.err = cmd.Wait()
	if !hung.Stop() {
		c.t.Errorf("criu %s hung", verb)
	}
	data, _ := os.ReadFile(filepath.Join(logs, "log"))
	c.log = testenv.CriuRun{Log: string(data)}.Lines()
	c.t.Logf("criu %s: %v\n%s", verb, c.err, c.log) // for an outcome that differs from the matrix
	c.created = strings.Contains(string(data), "Forking task")
}

// breakCriu makes the fault happen while criu itself is at work. In a dump this is late:
// criu has seized and written all processes and is about to write the tree. In a restore it
// is in the middle: criu has created the tree and fills the second CUDA process. At that
// point criu waits to open an image file, because the test holds a lease on it. (The fault
// never happens while criu makes a process run criu's own code: killing criu then may kill
// the process, too.)
func (c *cell) breakCriu(criu *exec.Cmd) {
	c.t.Helper()
	testenv.Eventually(c.t, testenv.Soon, "criu opens "+c.image.Name(), c.image.wanted)
	if c.restores() {
		testenv.Eventually(c.t, testenv.Soon, "the watcher has seen what criu has created", func() bool {
			sessions := c.sessions()
			return len(sessions) > 0 && slices.ContainsFunc(sessions[len(sessions)-1].Tree, func(id proc.Ident) bool { return id.PID == c.target })
		})
	}
	var err error
	switch c.fault {
	case stepFails:
		if err = c.image.Truncate(0); !c.restores() {
			err = os.Mkdir(filepath.Join(c.images, "inventory.img"), 0o700)
		}
	case criuKilled:
		err = criu.Process.Kill()
	case allKilled:
		c.host.KillWatcher()
		err = criu.Process.Kill()
	case watcherKilled:
		c.host.KillWatcher()
	case imagesFull:
		err = takeAllRoom(c.images)
	case runFull:
		err = takeAllRoom(c.host.RunDir)
	case continued:
		for _, pid := range c.job.PIDs() {
			err = errors.Join(err, unix.Kill(pid, unix.SIGCONT))
		}
	case otherDump:
		err = c.host.Command(c.neighbours.script).Run()
	case imagesGone:
		err = removeAll(c.imageFiles())
	case targetKilled:
		err = unix.Kill(c.target, unix.SIGKILL)
		testenv.Eventually(c.t, testenv.Soon, "the CUDA process has ended", func() bool { return !slices.Contains(c.alive(), c.target) })
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// script writes an action script that does something at one of criu's stages and leaves a
// mark.
func (c *cell) script(stage, do string) string {
	return testenv.Script(c.t, fmt.Sprintf("[ \"$CRTOOLS_SCRIPT_ACTION\" = %s ] || exit 0\ntouch '%s'\n%s", stage, filepath.Join(c.marks, scriptMark), do))
}

// scriptMark is the mark that a script leaves when it has run.
const scriptMark = "script"

// atMoment returns what a script does for a fault when no process of ours is at work.
func (c *cell) atMoment() string {
	switch c.fault {
	case criuKilled:
		return "kill -KILL $PPID"
	case continued:
		return "kill -CONT " + c.pids(c.t) + " || true"
	case imagesGone:
		return "rm " + c.imageFiles()
	}
	return "exec " + c.neighbours.script
}

// stage returns the stage of criu to which a failpoint of the hook belongs.
func (r row) stage() string {
	side, step, _ := strings.Cut(r.point, ".")
	switch {
	case step == "dumped":
		return "post-dump"
	case side == "dump":
		return "pre-dump"
	case strings.HasPrefix(step, "back."), step == "close":
		return "post-resume"
	}
	return step
}

// lease keeps other processes from opening a file until it is closed.
type lease struct{ *os.File }

// takeLease takes a lease on the image file that breakCriu waits for.
func (c *cell) takeLease() *lease {
	c.t.Helper()
	name := "pstree.img"
	if c.restores() {
		name = fmt.Sprintf("pagemap-%d.img", c.target)
	}
	f, err := os.OpenFile(filepath.Join(c.images, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return &lease{f}
}

// wanted reports whether a process waits to open the file.
func (l *lease) wanted() bool {
	kind, err := unix.FcntlInt(l.Fd(), unix.F_GETLEASE, 0)
	return err == nil && kind != unix.F_WRLCK
}

func removeAll(pattern string) error {
	files, err := filepath.Glob(pattern)
	for _, file := range files {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

func takeAllRoom(dir string) error {
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		return err
	}
	defer f.Close()
	for block := make([]byte, 1<<20); err == nil; {
		_, err = f.Write(block)
	}
	return nil
}
