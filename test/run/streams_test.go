package run

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// reader is a job that appends what it reads to the file got. It waits at line 500 for the file on,
// at line 1500 for the file finish, and at the end for the file stop.
const reader = `exec 3>>"$0/got"; await() { until [ -e "$0/$1" ]; do sleep 0.1; done; }
while read -r line; do case $line in *0500) await on;; *1500) await finish; esac; echo "$line" >&3; done; echo end >&3; await stop`

// newReaderWorld makes a world for a reader, and a file of 200 KB for it.
func newReaderWorld(t *testing.T) (w *world, input string) {
	t.Helper()
	w = emptyWorld(t)
	w.command = []string{"sh", "-c", `exec <"$0/input"; ` + reader, w.work}
	var b strings.Builder
	for n := range 2000 {
		fmt.Fprintf(&b, "%099d\n", n)
	}
	testenv.WriteFile(t, filepath.Join(w.work, "input"), b.String())
	return w, b.String()
}

func (w *world) got() string {
	data, _ := os.ReadFile(filepath.Join(w.work, "got"))
	return string(data)
}

// killAll kills the supervisor and everything in the job's place.
func (w *world) killAll(r *run) {
	w.t.Helper()
	r.kill()
	if err := unix.Kill(w.place().Init.PID, unix.SIGKILL); err != nil {
		w.t.Fatal(err)
	}
}

// readTo waits until the reader waits at a line.
func (r *run) readTo(line int) {
	r.w.t.Helper()
	r.awaits(fmt.Sprintf("the job waits at line %d", line), func() bool { return strings.Count(r.w.got(), "\n") == line })
}

// lets lets the reader read on.
func (w *world) lets(name string) {
	w.t.Helper()
	testenv.WriteFile(w.t, filepath.Join(w.work, name), "")
}

// gotAll waits until the reader has come to the end of its input, and fails the test unless that
// was all of it, once and in order.
func (r *run) gotAll(input string) {
	r.w.t.Helper()
	r.awaits("the job reads to the end", func() bool { return strings.HasSuffix(r.w.got(), "\nend\n") })
	if r.w.got() != input+"end\n" {
		r.w.t.Error("the job did not get its input once and in order")
	}
	r.w.stop(0)
	r.ends(0)
	r.w.nothingLeft()
}

// TestAJobReadsItsInputFromAFile, and goes on where it was.
func TestAJobReadsItsInputFromAFile(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, input := newReaderWorld(t)
		r := w.run()
		r.readTo(500)
		r.verified(1)
		w.lets("on")
		r.readTo(1500)
		w.killAll(r)
		w.lets("finish")
		r = w.run()
		r.says("D resumes from checkpoint")
		r.gotAll(input)
	})
}

// TestAJobThatAnEarlierVersionFeedsIsNotResumed: it would find no input.
func TestAJobThatAnEarlierVersionFeedsIsNotResumed(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		r := w.run()
		w.ticks(3)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		record := filepath.Join(w.dir, "job.json")
		edit(t, record, func(o map[string]any) { o["input"] = "stream" })
		before := tree(t, w.dir)
		w.run().ends(125, "resume it with the version that started it")
		if after := tree(t, w.dir); after != before {
			t.Errorf("it was\n%s\nand is\n%s", before, after)
		}
		edit(t, record, func(o map[string]any) { o["input"] = "file" }) // which criu opens, and nobody feeds
		w.finish(w.goesOn(w.newest()))
		inOrder(t, w)
	})
}

// TestCtrlZStopsTheCommandAndNotTheJob.
func TestCtrlZStopsTheCommandAndNotTheJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.runInGroup()
		r.verified(1)
		r.signal(unix.SIGTSTP)
		super := testenv.JobOf(t, r.cmd.Process.Pid)
		r.awaits("cucriu run is stopped", super.Stopped)
		w.ticks(10)
		r.signal(unix.SIGCONT)
		r.verified(1)
		r.signal(unix.SIGTSTP)
		r.awaits("cucriu run is stopped once more", super.Stopped)
		r.signal(unix.SIGCONT)
		w.finish(r)
	})
}

// TestOutputIsNotShownToItself: a job whose output.log is the standard output of cucriu run, as of a service that appends
// to it, has each line once.
func TestOutputIsNotShownToItself(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		r := w.run()
		w.ticks(3)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		log := filepath.Join(w.dir, "output.log")
		output, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer output.Close()
		cmd := w.host.CucriuCommand("run", "--dir", w.dir)
		cmd.Stdout = output
		r = w.start(cmd, nil)
		r.resumed("")
		r.says("standard output leads into " + log + " itself, so the job's output is not shown")
		w.finish(r)
		if again := inOrder(t, w); again > 0 {
			t.Errorf("%d lines are there more than once", again)
		}
	})
}

// TestTheOutputIsInItsPlaceAgain after a resume if it was renamed or removed, as by logrotate.
func TestTheOutputIsInItsPlaceAgain(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		log := filepath.Join(w.dir, "output.log")
		r := w.run()
		for name, rotate := range map[string]string{
			"renamed": "mv LOG LOG.1", "replaced": "mv LOG LOG.2 && touch LOG", "compressed": "mv LOG LOG.3 && touch LOG && gzip LOG.3",
			"renamed into a folder": "mkdir LOG.d && mv LOG LOG.d/output.log", "removed": "rm LOG",
		} {
			w.ticks(3)
			if out, err := exec.Command("sh", "-c", strings.ReplaceAll(rotate, "LOG", log)).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			w.ticks(3)
			r.signal(unix.SIGTERM)
			r.ends(requeue)
			before := rotated(t, log)
			r = w.run()
			r.resumed("")
			r.says(log + " was renamed or removed while the job wrote to it: the job's output goes there again")
			r.awaits("the output is in its place", func() bool {
				data, _ := os.ReadFile(log)
				return strings.Contains(string(data), fmt.Sprintf("tick %d\n", w.report().Tick))
			})
			if after := rotated(t, log); after != before {
				t.Errorf("%s: the rotated files were\n%s\nand are\n%s", name, before, after)
			}
		}
		w.ticks(1)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		r = w.run()
		r.resumed("")
		if strings.Contains(r.said(), "renamed or removed") {
			t.Errorf("the output was in its place, and it says %s", r.said())
		}
		w.finish(r)
	})
}

// rotated lists the files beside the job's output, with their sizes and times.
func rotated(t *testing.T, log string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", `find "$0".?* -type f -printf "%P %p %s %T@\n"`, log).CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Fatal(err)
	}
	return string(out)
}

// TestOutputThatWasEmptiedIsShown: logrotate's copytruncate does so.
func TestOutputThatWasEmptiedIsShown(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		log := filepath.Join(w.dir, "output.log")
		shown := filepath.Join(w.work, "shown")
		output, err := os.Create(shown)
		must(t, err)
		defer output.Close()
		cmd := w.host.CucriuCommand(append([]string{"run", "--dir", w.dir, "--every", "0", "--"}, w.command...)...)
		cmd.Stdout = output
		r := w.start(cmd, nil)
		w.ticks(5)
		must(t, os.Truncate(log, 0))
		w.ticks(1)
		now := fmt.Sprintf("tick %d\n", w.report().Tick)
		r.awaits("what follows is shown", func() bool {
			data, _ := os.ReadFile(shown)
			return strings.Contains(string(data), now)
		})
		w.finish(r)
	})
}

// TestInputThatAJobDoesNotGet is refused, or warned of. What a shell reads that starts jobs is none.
func TestInputThatAJobDoesNotGet(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		input := filepath.Join(w.work, "input")
		testenv.WriteFile(t, input, "one\ntwo\n")
		for name, c := range map[string]struct {
			shell, says string
			status      int
		}{
			"a file": {`"$@" <"$IN"`, "the job would not get the file that is the standard input", 2},
			"a pipe": {
				`{ cat "$IN"; : >"$IN.sent"; until [ -e "$IN.over" ]; do sleep 0.1; done; } |
					{ until [ -e "$IN.sent" ]; do sleep 0.1; done; "$@"; s=$?; : >"$IN.over"; exit $s; }`,
				"warning: the job does not get what is piped to cucriu run", 0,
			},
			"an idle pipe":     {`sleep 3 | "$@"`, "", 0},
			"a list":           {`{ read -r first; "$@"; } <"$IN"`, "", 0},
			"an empty file":    {`: >"$IN.empty"; "$@" <"$IN.empty"`, "", 0},
			"a closed stream":  {`"$@" <&-`, "", 0},
			"the null device":  {`"$@" </dev/null`, "", 0},
			"the job opens it": {`"$@"`, "", 0},
		} {
			cucriu := w.host.CucriuCommand("run", "--dir", filepath.Join(w.work, strings.ReplaceAll(name, " ", "-")),
				"--every", "0", "--", "sh", "-c", "exec wc -l <"+input)
			cmd := exec.Command("sh", append([]string{"-c", c.shell, "sh"}, cucriu.Args...)...)
			cmd.Env, cmd.Dir = append(cucriu.Environ(), "IN="+input), cucriu.Dir
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != c.status || !strings.Contains(string(out), c.says) {
				t.Errorf("%s: %v: %s", name, err, out)
			}
			if warned := strings.Contains(string(out), "a job reads /dev/null"); warned != (c.says != "") {
				t.Errorf("%s: it says %s", name, out)
			}
		}
	})
}

// TestOutputThatCannotBeShown, as on a full disk, is told once, and shown as soon as it can be: without a hole.
func TestOutputThatCannotBeShown(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		full := t.TempDir()
		must(t, unix.Mount("tmpfs", full, "tmpfs", 0, "size=64k"))
		defer unix.Unmount(full, unix.MNT_DETACH)
		w := newWorld(t)
		filler := filepath.Join(full, "filler")
		fill := func() {
			_ = os.WriteFile(filler, make([]byte, 1<<20), 0o600) // as much as fits
		}
		shown := filepath.Join(full, "shown")
		output, err := os.Create(shown)
		must(t, err)
		defer output.Close()
		fill()
		cmd := w.host.CucriuCommand(append([]string{"run", "--dir", w.dir, "--every", "0", "--"}, w.command...)...)
		cmd.Stdout = output
		r := w.start(cmd, nil)
		r.says("the job's output cannot be shown (")
		w.ticks(3)
		must(t, os.Remove(filler))
		w.ticks(3)
		r.awaits("the output is shown", func() bool {
			info, err := os.Stat(shown)
			return err == nil && info.Size() > 0
		})
		w.ticks(1)
		data, err := os.ReadFile(shown)
		must(t, err)
		log, err := os.ReadFile(filepath.Join(w.dir, "output.log"))
		must(t, err)
		if !strings.HasPrefix(string(log), string(data)) {
			t.Errorf("shown is %q, and the output is %q", data, log)
		}
		w.finish(r)
		if said := r.said(); strings.Count(said, "cannot be shown") != 1 || strings.Contains(said, "were not shown") {
			t.Errorf("it says %s", said)
		}
	})
}

// TestOutputThatWasNeverShown is told at the end, with how much it is.
func TestOutputThatWasNeverShown(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		output, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		must(t, err)
		defer output.Close()
		cmd := w.host.CucriuCommand(append([]string{"run", "--dir", w.dir, "--every", "0", "--"}, w.command...)...)
		cmd.Stdout = output
		r := w.start(cmd, nil)
		w.ticks(3)
		w.finish(r)
		r.says("of the job's output were not shown (")
		r.says("no space left on device): all of it is in " + filepath.Join(w.dir, "output.log"))
	})
}

// runInGroup starts a supervisor as a shell does that can stop it and continue it.
func (w *world) runInGroup() *run {
	w.t.Helper()
	cmd := w.host.CucriuCommand(append(append([]string{"run", "--dir", w.dir}, append(w.flags, "--")...), w.command...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return w.start(cmd, w.flags)
}
