package long

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// reader is a job that appends what it reads to the file got. It waits at line 500 for the file on,
// at line 1500 for the file finish, and at the end for the file stop.
const reader = `exec 3>>"$0/got"; await() { until [ -e "$0/$1" ]; do sleep 0.1; done; }
while read -r line; do case $line in *0500) await on;; *1500) await finish; esac; echo "$line" >&3; done; echo end >&3; await stop`

// newReaderWorld makes a world for a reader, and 200 KB of input for it.
func newReaderWorld(t *testing.T) (w *world, input string) {
	t.Helper()
	w = emptyWorld(t)
	w.command = []string{"sh", "-c", reader, w.work}
	w.flags = append(w.flags, "--stdin")
	var b strings.Builder
	for n := range 2000 {
		fmt.Fprintf(&b, "%099d\n", n)
	}
	return w, b.String()
}

// runWith starts a supervisor with this standard input.
func (w *world) runWith(stdin *os.File) *run {
	w.t.Helper()
	cmd := w.host.CucriuCommand(append(append([]string{"run", "--dir", w.dir}, append(w.flags, "--")...), w.command...)...)
	cmd.Stdin = stdin
	return w.start(cmd, w.flags)
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

// TestAJobIsGivenItsInputOnceAndInOrder, although it is killed in the middle, and those who wrote
// the input have gone.
func TestAJobIsGivenItsInputOnceAndInOrder(t *testing.T) {
	simulated(t, func(t *testing.T) {
		w, input := newReaderWorld(t)
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r := w.runWith(read)
		read.Close()
		const first = 190_000
		if _, err := write.WriteString(input[:first]); err != nil {
			t.Fatal(err)
		}
		r.readTo(500) // and the pipe is full
		r.verified(1)
		w.lets("on")
		r.readTo(1500)
		if _, err := write.WriteString(input[first:]); err != nil {
			t.Fatal(err)
		}
		write.Close()
		r.awaits("all of the input is kept", func() bool { return testenv.Exists(filepath.Join(w.dir, "input", "end")) })
		w.killAll(r)
		w.lets("finish")

		nothing, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer nothing.Close()
		r = w.runWith(nothing)
		r.says("D goes on from checkpoint")
		r.says("the job's input has come to its end before")
		r.gotAll(input)
	})
}

// TestAJobReadsItsInputFromAFile itself, and goes on where it was.
func TestAJobReadsItsInputFromAFile(t *testing.T) {
	simulated(t, func(t *testing.T) {
		w, input := newReaderWorld(t)
		path := filepath.Join(w.work, "input")
		testenv.WriteFile(t, path, "what was read before\n"+input)
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.Seek(int64(len("what was read before\n")), 0); err != nil {
			t.Fatal(err)
		}
		r := w.runWith(file)
		r.readTo(500)
		r.verified(1)
		w.lets("on")
		r.readTo(1500)
		w.killAll(r)
		w.lets("finish")
		r = w.runWith(nil)
		r.says("D goes on from checkpoint")
		r.gotAll(input)
	})
}

// TestCtrlZStopsTheCommandAndNotTheJob.
func TestCtrlZStopsTheCommandAndNotTheJob(t *testing.T) {
	simulated(t, func(t *testing.T) {
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
