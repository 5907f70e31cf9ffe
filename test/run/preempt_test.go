package run

import (
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

const requeue = 75 // the default of --requeue-status

// TestAPreemptedJobGoesOnWhereItWas, with CUDA, without, and again and again.
func TestAPreemptedJobGoesOnWhereItWas(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		r := w.run()
		w.ticks(5)
		for i := range 3 {
			r.signal(unix.SIGTERM)
			r.ends(requeue, "making a last checkpoint", fmt.Sprintf("the same command resumes from checkpoint 00000%d", i+1))
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
	testenv.Simulated(t, func(t *testing.T) {
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

// TestASecondSignalEndsTheJobAtOnce, and what there is of its last image is kept: it is complete,
// and nobody has answered for it.
func TestASecondSignalEndsTheJobAtOnce(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run()
		r.verified(1)
		r.kill()
		newest := w.newest()
		// A dump that never ends.
		s := w.stopAt("jobs.dumped")
		r = w.runAs(s.host, "--every", "0")
		r.says("supervised again")
		r.signal(unix.SIGTERM)
		s.await(r)
		begun := time.Now()
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		if took := time.Since(begun); took > testenv.Soon {
			t.Errorf("it took %v", took)
		}
		w.noProcesses()
		r = w.run("--every", "0")
		r.says("was made from the image that an earlier supervisor had staged")
		r.says("resumes from checkpoint ")
		if e, _ := w.last(jobs.EventResumed); e.Checkpoint <= newest {
			t.Errorf("it goes on from %s, and there was %s", e.Checkpoint, newest)
		}
		w.finish(r)
		inOrder(t, w)
	})
}

// TestASignalThatIsSentTwiceIsOneRequest: timeout(1) sends it to its child and to the process group.
func TestASignalThatIsSentTwiceIsOneRequest(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		r := w.run()
		w.ticks(5)
		s := w.stopAt("dump.inspect")
		r.kill()
		r = w.runAs(s.host)
		r.says("supervised again")
		for range 3 {
			must(t, r.cmd.Process.Signal(unix.SIGTERM))
			time.Sleep(10 * time.Millisecond)
		}
		s.await(r)
		s.goOn()
		r.ends(requeue, "got SIGTERM: making a last checkpoint", "checkpoint 000001: paused for")
		w.finish(w.goesOn("000001"))
		if again := inOrder(t, w); again != 0 {
			t.Errorf("%d ticks were done twice", again)
		}
	})
}

// TestASecondSignalCutsOffTheWayToTheStore, and the image that was on it becomes a checkpoint at
// the next start. Nothing of it counts before.
func TestASecondSignalCutsOffTheWayToTheStore(t *testing.T) {
	testenv.Parallel(t)
	for name, last := range map[string]bool{"of a checkpoint on the schedule": false, "of the last checkpoint": true} {
		for _, step := range []string{"store.begin", "store.file", "store.rename"} {
			t.Run(name+" at "+step, func(t *testing.T) {
				testenv.Simulated(t, func(t *testing.T) {
					w := newWorld(t)
					r := w.run(once...)
					r.verified(1)
					r.kill()
					newest := w.newest()
					host, marks := w.host.For(t), t.TempDir()
					host.UseFailpoint(step + "=hang")
					host.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
					hangs := func() bool { return testenv.Exists(filepath.Join(marks, step)) }
					if last {
						r = w.runAs(host, "--every", "0", "--stage", "disk")
						r.says("supervised again")
					} else {
						r = w.runAs(host, "--stage", "disk")
						r.awaits("the image is on its way", hangs)
					}
					r.signal(unix.SIGTERM)
					r.says("making a last checkpoint")
					r.awaits("the image is on its way", hangs)
					r.signal(unix.SIGTERM)
					r.endsSoon(testenv.Soon/2, requeue, "got a second signal")
					if strings.Contains(r.said(), "file already closed") || strings.Contains(r.said(), "the job keeps running") {
						t.Error("it says too much of a last checkpoint that was cut off")
					}
					w.noProcesses()
					if now := w.newest(); now != newest {
						t.Errorf("the newest checkpoint was %s, and is %s", newest, now)
					}
					if left := glob(w.dir, "checkpoints/.*"); len(left) > 0 {
						t.Errorf("left over: %v", left)
					}
					r = w.run("--every", "0")
					r.says("was made from the image that an earlier supervisor had staged")
					r.says("resumes from checkpoint ")
					if strings.Contains(r.said(), "never became a checkpoint") {
						t.Error("it says of a checkpoint that it is none")
					}
					if e, _ := w.last(jobs.EventResumed); e.Checkpoint <= newest {
						t.Errorf("it goes on from %s", e.Checkpoint)
					}
					w.finish(r)
					inOrder(t, w)
				})
			})
		}
	}
}

// TestAGraceThatIsTooShortKeepsTheNewestCheckpoint.
func TestAGraceThatIsTooShortKeepsTheNewestCheckpoint(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
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

// TestProgramsThatAreReplacedMeanwhile loses nothing: an upgrade of cucriu, of the job's program, or the
// removal of both.
func TestProgramsThatAreReplacedMeanwhile(t *testing.T) {
	testenv.Parallel(t)
	for _, which := range []string{"cucriu", "the job's program"} {
		for how, replace := range map[string]func(t *testing.T, path string){
			"removed": func(t *testing.T, path string) { must(t, os.Remove(path)) },
			"replaced": func(t *testing.T, path string) {
				testenv.WriteFile(t, path+".new", "none")
				rename(t, path+".new", path)
			},
		} {
			t.Run(which+" "+how, func(t *testing.T) {
				testenv.Simulated(t, func(t *testing.T) {
					w := newMixedWorld(t)
					bin := t.TempDir()
					copyOf := func(path string) string {
						to := filepath.Join(bin, filepath.Base(path))
						copyTree(t, path, to)
						return to
					}
					w.flags = []string{"--every", "0"}
					hook := w.host.HookBin
					host := w.host.For(t)
					host.HookBin = copyOf(hook)
					cucriu := copyOf(filepath.Join(filepath.Dir(hook), "cucriu"))
					w.command[0] = copyOf(w.command[0])
					r := w.runAs(host)
					w.ticks(3)
					changed := cucriu
					if which != "cucriu" {
						changed = w.command[0]
					}
					replace(t, changed)
					w.checkpoint()
					w.ticks(3)
					r.signal(unix.SIGTERM)
					r.ends(requeue)
					w.noProcesses()
					w.finish(w.goesOn(w.newest()))
					if again := inOrder(t, w); again != 0 {
						t.Errorf("%d ticks were done twice", again)
					}
				})
			})
		}
	}
}
