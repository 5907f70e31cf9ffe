package long

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/jobs"
	"cucriu/internal/testenv"
)

const requeue = 75 // the default of --requeue-status

// TestAPreemptedJobGoesOnWhereItWas, with CUDA, without, and again and again.
func TestAPreemptedJobGoesOnWhereItWas(t *testing.T) {
	simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		r := w.run()
		w.ticks(5)
		for i := range 3 {
			r.signal(unix.SIGTERM)
			r.ends(requeue, "leaves this host", fmt.Sprintf("the same command goes on from checkpoint 00000%d", i+1))
			w.nothingLeft()
			ticks := w.report().Tick
			r = w.goesOn(w.newest())
			if e, found := w.last(jobs.EventResumed); !found || e.Checkpoint != w.newest() {
				t.Errorf("the log says %+v", e)
			}
			if now := w.report().Tick; now <= ticks {
				t.Errorf("the job was at tick %d, and is at %d", ticks, now)
			}
		}
		w.finish(r)
		if again := inOrder(t, w); again != 0 {
			t.Errorf("%d ticks were done twice", again)
		}
	})
}

func TestAPreemptedCUDAJobGoesOnWhereItWas(t *testing.T) {
	simulated(t, func(t *testing.T) {
		w := newCUDAWorld(t, "--spin", "event-sync", "--loaders", "1")
		r := w.run("--every", "0", "--preempt", "USR1", "--requeue-status", "99")
		w.ticks(5)
		w.checks()
		r.signal(unix.SIGUSR1)
		r.ends(99, "got SIGUSR1")
		w.nothingLeft()
		before := w.report().Tick
		r = w.goesOn(w.newest())
		w.checks()
		if now := w.report().Tick; now < before {
			t.Errorf("the job was at tick %d, and is at %d", before, now)
		}
		w.finish(r)
	})
}

// TestASecondSignalEndsTheJobAtOnce with what there is.
func TestASecondSignalEndsTheJobAtOnce(t *testing.T) {
	simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run()
		r.verified(1)
		r.kill()
		newest := w.newest()
		// A dump that takes for ever.
		s := w.stopAt("jobs.dumped")
		r = w.runAs(s.host, "--every", "0")
		r.says("under care again")
		r.signal(unix.SIGTERM)
		s.await(r)
		begun := time.Now()
		r.signal(unix.SIGTERM)
		s.goOn()
		r.ends(requeue)
		if took := time.Since(begun); took > testenv.Soon {
			t.Errorf("it took %v", took)
		}
		w.noProcesses()
		r = w.run("--every", "0")
		r.says("goes on from checkpoint ")
		if e, _ := w.last(jobs.EventResumed); e.Checkpoint < newest {
			t.Errorf("it goes on from %s, and there was %s", e.Checkpoint, newest)
		}
		w.finish(r)
		inOrder(t, w)
	})
}

// TestAGraceThatIsTooShortKeepsTheNewestCheckpoint.
func TestAGraceThatIsTooShortKeepsTheNewestCheckpoint(t *testing.T) {
	simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run("--grace", "1ms")
		r.verified(2)
		w.flags = []string{"--every", "0"}
		newest := w.newest()
		r.signal(unix.SIGTERM)
		r.ends(requeue, "no last checkpoint")
		w.nothingLeft()
		if now := w.newest(); now < newest {
			t.Fatalf("the newest checkpoint was %s, and is %s", newest, now)
		}
		r = w.goesOn(w.newest())
		w.finish(r)
		inOrder(t, w)
	})
}
