package run

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs"
	"cucriu/internal/testenv"
)

// counts returns how many events of a kind the job's log has.
func (w *world) counts(kind string) (n int) {
	w.t.Helper()
	for _, e := range w.events() {
		if e.Event == kind {
			n++
		}
	}
	return n
}

// generation is which incarnation of the job D belongs to.
func (w *world) generation() uint64 {
	w.t.Helper()
	var owner struct{ Generation uint64 }
	data, err := os.ReadFile(filepath.Join(w.dir, "owner.json"))
	if err == nil {
		err = json.Unmarshal(data, &owner)
	}
	must(w.t, err)
	return owner.Generation
}

// fails kills the job's command, and waits until the supervisor has started it again for the nth time.
func (w *world) fails(r *run, n int) {
	w.t.Helper()
	w.kills(commandKilled)
	r.says(fmt.Sprintf("D was killed by SIGKILL, and is started again (restart %d)", n))
}

// TestAJobThatFailsIsStartedAgain from its command, and from its newest checkpoint as soon as there is one; not after a
// preemption or a stop.
func TestAJobThatFailsIsStartedAgain(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		w.flags = []string{"--every", "never", "--restart", "on-failure", "--metrics", filepath.Join(w.work, "job.prom")}
		r := w.run()
		w.checks()
		before := w.generation()
		w.fails(r, 1)
		r.awaits("it is started again", func() bool { return w.counts(jobs.EventStarted) == 2 })
		w.checks()
		if now := w.generation(); now != before+1 {
			t.Errorf("generation %d, and %d before", now, before)
		}
		w.exits(0, "checkpoint 000001", "jobs", "checkpoint", w.dir)
		w.fails(r, 2)
		r.resumed("000001")
		w.checks()
		w.exits(0, "restarts  2", "jobs", "show", w.dir)
		metrics, err := os.ReadFile(filepath.Join(w.work, "job.prom"))
		if !strings.Contains(string(metrics), `cucriu_job_restarts_total{job="D"} 2`) {
			t.Errorf("%v: %s", err, metrics)
		}
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		r = w.goesOn("000002")
		w.exits(0, "checkpoint 000003", "jobs", "stop", w.dir)
		r.ends(requeue)
		w.finish(w.goesOn("000003"))
		if n := w.counts(jobs.EventRestarted); n != 2 {
			t.Errorf("%d restarts", n)
		}
	})
}

// TestAServerFromAnImageIsStartedAgain from that, and is reached at the same port.
func TestAServerFromAnImageIsStartedAgain(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, port := newServerWorld(t)
		testenv.WriteFile(t, filepath.Join(w.work, "go"), "")
		testenv.WriteFile(t, filepath.Join(w.work, "open"), "")
		original := w.run("--every", "never")
		original.says("D: sh")
		w.when(0, "checkpoint 000001", "tcp:"+port)
		job, own := w.from(), testenv.FreePort(t)
		r := job.startFrom(w, "--restart", "always", "--preempt", "none", "--publish", "127.0.0.1:"+own+":"+port)
		for n := range 3 {
			gets(t, own, "hello")
			job.fails(r, n+1)
		}
		gets(t, own, "hello")
		if n := job.counts(jobs.EventStarted); n != 4 {
			t.Errorf("it was started %d times", n)
		}
		r.signal(unix.SIGTERM)
		r.ends(128 + int(unix.SIGTERM))
		original.signal(unix.SIGTERM)
		original.ends(requeue)
		w.noProcesses()
	})
}

// TestAJobThatAlwaysEndsIsGivenUp after the fifth end within a minute, and not finished.
func TestAJobThatAlwaysEndsIsGivenUp(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		w.command = []string{"sh", "-c", "echo runs; exit $0", "0"}
		r := w.run("--restart", "always")
		for range 2 {
			r.ends(125, "D has ended with exit status 0, and is not started again: that was the 5th end within 1m0s")
			w.nothingLeft()
			r = w.again()
		}
		r.ends(125)
		if n := strings.Count(w.output(), "runs"); n != 15 {
			t.Errorf("it ran %d times", n)
		}
		w = emptyWorld(t)
		w.command = []string{"sh", "-c", "echo runs; exit $0", "0"}
		w.run("--restart", "on-failure").ends(0)
		w = emptyWorld(t)
		w.command = []string{"sh", "-c", "echo runs; exit $0", "7"}
		w.run("--restart", "no").ends(7)
		if n := strings.Count(w.output(), "runs"); n != 1 {
			t.Errorf("it ran %d times", n)
		}
	})
}

// TestASignalThatComesBetweenTwoRunsEndsTheJob: nothing is started any more.
func TestASignalThatComesBetweenTwoRunsEndsTheJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.stopAt("jobs.restart")
		r := w.runAs(s.host, "--every", "never", "--restart", "always", "--preempt", "none")
		w.ticks(3)
		w.fails(r, 1)
		s.await(r)
		r.signal(unix.SIGTERM)
		time.Sleep(time.Second) // until it is taken
		s.goOn()
		r.ends(128+int(unix.SIGTERM), "it leaves this host")
		w.nothingLeft()
	})
}

// TestNoKillBetweenTwoRunsLosesTheJob, or makes two of it.
func TestNoKillBetweenTwoRunsLosesTheJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		w.flags = []string{"--every", "never", "--restart", "on-failure"}
		r := w.run()
		w.checks()
		for n, from := range []string{"D: ", "resumes from checkpoint 000001"} {
			if n == 1 {
				w.exits(0, "checkpoint 000001", "jobs", "checkpoint", w.dir)
			}
			r.kill()
			s := w.stopAt("jobs.restart")
			r = w.runAs(s.host)
			r.says("is supervised again")
			w.fails(r, 1)
			s.await(r)
			r.kill()
			s.goOn()
			w.noProcesses()
			r = w.again()
			r.says(from)
			w.checks()
			if all := testenv.NotEnding(testenv.Running("cudawork")); len(all) != 1 {
				t.Errorf("processes %v", all)
			}
		}
		w.finish(r)
	})
}

// TestAJobWhoseOutputWasRotatedIsStartedAgain from its command and from a checkpoint.
func TestAJobWhoseOutputWasRotatedIsStartedAgain(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "never", "--restart", "on-failure"}
		output := filepath.Join(w.dir, "output.log")
		r := w.run()
		w.ticks(3)
		must(t, os.Rename(output, output+".1"))
		w.fails(r, 1)
		r.awaits("it is started again", func() bool { return w.counts(jobs.EventStarted) == 2 })
		w.ticks(3)
		w.exits(0, "checkpoint 000001", "jobs", "checkpoint", w.dir)
		must(t, os.Rename(output, output+".2"))
		w.fails(r, 2)
		r.resumed("000001")
		w.ticks(3)
		w.finish(r)
	})
}
