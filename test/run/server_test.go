package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs"
	"cucriu/internal/testenv"
)

// TestWithPreemptNoneTheJobGetsSIGTERM, nothing is dumped, and the exit status is the job's. One that ends with 0 then
// has not finished: the same command starts it again.
func TestWithPreemptNoneTheJobGetsSIGTERM(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run("--every", "never", "--preempt", "none")
		w.ticks(3)
		r.signal(unix.SIGTERM)
		r.ends(128+int(unix.SIGTERM), "D was killed by SIGTERM")
		r = w.again()
		w.ticks(3)
		if out, err := w.host.Cucriu("jobs", "checkpoint", w.dir); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		r.signal(unix.SIGTERM)
		r.ends(128 + int(unix.SIGTERM))
		if all := w.checkpoints(); len(all) != 1 {
			t.Errorf("there are checkpoints %v", all)
		}
		w.finish(w.again())
	})
}

// TestAServerThatEndsWithZeroAtSIGTERMHasNotFinished: the same command starts it again.
func TestAServerThatEndsWithZeroAtSIGTERMHasNotFinished(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		w.command = []string{"sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done"}
		r := w.run("--every", "never", "--preempt", "none")
		for n := range 3 {
			r.awaits("it is ready", func() bool { return strings.Count(w.output(), "ready") == n+1 })
			r.signal(unix.SIGTERM)
			r.ends(0, "is not considered finished")
			w.nothingLeft()
			r = w.again()
		}
		r.awaits("it is ready", func() bool { return strings.Count(w.output(), "ready") == 4 })
	})
}

// output is what the job has written.
func (w *world) output() string {
	data, _ := os.ReadFile(filepath.Join(w.dir, "output.log"))
	return string(data)
}

// TestASignalDuringADumpWaitsForItsEnd: in the image, it would end each job that is resumed from that.
func TestASignalDuringADumpWaitsForItsEnd(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.stopAt("jobs.dumped")
		r := w.runAs(s.host, "--preempt", "none")
		s.await(r)
		r.signal(unix.SIGTERM)
		time.Sleep(time.Second) // until it is taken
		s.goOn()
		r.ends(128 + int(unix.SIGTERM))
		if e, _ := w.last(jobs.EventCheckpoint); e.Checkpoint != "000001" {
			t.Errorf("there is %+v", e)
		}
		r = w.run("--every", "never")
		r.resumed("000001")
		w.finish(r)
	})
}
