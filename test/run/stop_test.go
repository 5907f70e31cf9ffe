package run

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// stop is a step at which a program of ours is made to wait.
type stop struct {
	w    *world
	host *testenv.Host // on which it waits
	dir  string
	fifo *os.File // from which it reads that it may go on: it does not poll, so that it looks like what hangs
}

// stopAt makes the first program that comes to a step wait there.
func (w *world) stopAt(step string) *stop {
	w.t.Helper()
	host := w.host.For(w.t)
	s := &stop{w: w, host: host, dir: w.t.TempDir()}
	marks := w.t.TempDir()
	fifo := filepath.Join(s.dir, "go")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		w.t.Fatal(err)
	}
	var err error
	if s.fifo, err = os.OpenFile(fifo, os.O_RDWR, 0); err != nil { // so that no side waits for the other to open it
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.fifo.Close() })
	script := testenv.Script(w.t, fmt.Sprintf("touch %s/reached\nread -r go <%s", s.dir, fifo))
	host.UseFailpoint(step + "=run " + script)
	host.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
	w.t.Cleanup(s.goOn)
	return s
}

// await waits until a program has come to the step.
func (s *stop) await(r *run) {
	s.w.t.Helper()
	r.awaits("the step is reached", func() bool { return testenv.Exists(filepath.Join(s.dir, "reached")) })
}

func (s *stop) goOn() {
	s.w.t.Helper()
	if _, err := s.fifo.WriteString("go\n"); err != nil {
		s.w.t.Fatal(err)
	}
}

// who is killed.
type who string

const (
	supervisorKilled who = "supervisor"
	insideKilled     who = "inside"
	criuKilled       who = "criu"
	watcherKilled    who = "watcher"
	initKilled       who = "init"
	keeperKilled     who = "keeper" // of an adopted job
	rootKilled       who = "root"
	commandKilled    who = "command" // below the job's first process
	allKilled        who = "all"
)

var everybody = []who{supervisorKilled, insideKilled, criuKilled, watcherKilled, initKilled, rootKilled, allKilled}

// victims lists the pids of them.
func (w *world) victims(k who) []int {
	w.t.Helper()
	var found []int
	for _, pid := range testenv.PIDs() {
		if slices.Contains(w.processes, pid) {
			continue
		}
		words := testenv.CommandLine(pid)
		has := func(word string) bool {
			return testenv.ProcessName(pid) == "cucriu" && len(words) > 1 && words[1] == word
		}
		is := false
		switch k {
		case supervisorKilled:
			is = has("run")
		case insideKilled:
			is = has(jobInside)
		case watcherKilled:
			is = has("watch")
		case criuKilled:
			is = testenv.ProcessName(pid) == "criu"
		case initKilled:
			is = has(sandbox.CommandInit)
		case keeperKilled:
			is = has(sandbox.CommandKeep)
		case rootKilled:
			p := w.place()
			is = p != nil && !isOurs(pid) && insidePID(pid) == p.Root
		case commandKilled:
			is = !isOurs(pid) && w.place() != nil && isBelow(pid, w.place().Root)
		case allKilled:
			is = true
		}
		if is {
			found = append(found, pid)
		}
	}
	return found
}

// isBelow reports whether a process is a child of the one that has a number in the sandbox.
func isBelow(pid, root int) bool {
	status, err := proc.ReadStatus(pid)
	return err == nil && insidePID(status.PPID) == root
}

// kills kills them, and reports whether there was any. None of them gets to react to the end of another.
func (w *world) kills(k who) bool {
	w.t.Helper()
	victims := w.victims(k)
	for _, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
		for _, pid := range victims {
			_ = unix.Kill(pid, sig)
		}
	}
	return len(victims) > 0
}

// killsAll kills all of the job and its supervisor, and waits until nothing of them is there.
func (r *run) killsAll() {
	r.w.t.Helper()
	testenv.Eventually(r.w.t, testenv.Soon, "all of them are killed", func() bool { // one may fork meanwhile
		return !r.w.kills(allKilled)
	})
	<-r.done
	r.w.noProcesses()
}
