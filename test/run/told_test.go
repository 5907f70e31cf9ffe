package run

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs"
	"cucriu/internal/testenv"
)

// killed kills all of a job that has a whole checkpoint.
func killed(w *world) *world {
	w.t.Helper()
	r := w.run()
	r.verified(1)
	r.killsAll()
	w.flags = []string{"--every", "0"}
	return w
}

// endsSoon fails the test unless the supervisor ends with this status in this time.
func (r *run) endsSoon(within time.Duration, status int, says ...string) {
	r.w.t.Helper()
	begun := time.Now()
	r.ends(status, says...)
	if took := time.Since(begun); took > within {
		r.w.t.Errorf("it took %v", took)
	}
}

// TestASignalBeforeTheJobIsHere leaves the job as it was: whoever waits for another host to let go
// of it, or restores it, gives up.
func TestASignalBeforeTheJobIsHere(t *testing.T) {
	testenv.Parallel(t)
	for name, test := range map[string]struct {
		sig    unix.Signal
		flags  []string
		status int
	}{
		"preemption":     {unix.SIGTERM, nil, requeue},
		"Ctrl-C":         {unix.SIGINT, nil, 128 + int(unix.SIGINT)},
		"another signal": {unix.SIGTERM, []string{"--preempt", "USR1"}, 128 + int(unix.SIGTERM)},
	} {
		t.Run("while it waits/"+name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := killed(newWorld(t))
				newest := w.newest()
				testenv.WriteFile(t, filepath.Join(w.dir, "host"), "another boot\n")
				r := w.run(test.flags...)
				r.says("after which it must have ended")
				r.signal(test.sig)
				r.ends(test.status, "before D was started or resumed", "resumes from checkpoint "+newest)
				w.finish(w.goesOn(newest))
				inOrder(t, w)
			})
		})
	}
	for _, step := range []string{"restore.pre-restore", "restore.pre-resume", "jobs.restored"} {
		t.Run("while it hangs at "+step, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := killed(newMixedWorld(t))
				newest := w.newest()
				s := w.stopAt(step)
				r := w.runAs(s.host)
				s.await(r)
				r.signal(unix.SIGTERM)
				r.endsSoon(testenv.Soon/2, requeue, "resumes from checkpoint "+newest)
				w.nothingLeft()
				w.finish(w.goesOn(newest))
				inOrder(t, w)
			})
		})
	}
}

// TestASignalDuringARestore is not forgotten: the job that has come back leaves.
func TestASignalDuringARestore(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := killed(newWorld(t))
		newest := w.newest()
		s := w.stopAt("jobs.restored")
		r := w.runAs(s.host, "--preempt", "USR1")
		s.await(r)
		r.signal(unix.SIGUSR1)
		r.says("got SIGUSR1 while D is being started or resumed")
		s.goOn()
		r.ends(requeue) // with a last checkpoint, if the restore has ended before it is given up
		w.nothingLeft()
		if now := w.newest(); now < newest {
			t.Errorf("the newest checkpoint was %s, and is %s", newest, now)
		}
		w.finish(w.goesOn(w.newest()))
		inOrder(t, w)
	})
}

// TestASignalWhileAJobIsTakenUnderCareAgain waits for what is under way in its place, but not
// for longer than --grace.
func TestASignalWhileAJobIsTakenUnderCareAgain(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run()
		r.verified(1)
		r.kill()
		newest := w.newest()
		s := w.stopAt("jobs.dumped") // somebody is at work in the sandbox, and does not give up
		r = w.runAs(s.host)
		s.await(r)
		r.kill()
		r = w.run("--every", "0", "--grace", "3s")
		r.awaits("it owns D", func() bool {
			var owner struct{ PID int }
			data, err := os.ReadFile(filepath.Join(w.dir, "owner.json"))
			return err == nil && json.Unmarshal(data, &owner) == nil && owner.PID == r.cmd.Process.Pid
		})
		begun := time.Now()
		r.signal(unix.SIGTERM)
		r.says("got SIGTERM while D is being started or resumed")
		r.endsSoon(testenv.Soon/2, requeue)
		if time.Since(begun) < 3*time.Second {
			t.Error("it ended before its grace was over, without the job's last checkpoint")
		}
		w.noProcesses()
		s.goOn()
		r = w.run("--every", "0")
		r.says("resumes from checkpoint ")
		if e, _ := w.last(jobs.EventResumed); e.Checkpoint < newest {
			t.Errorf("it goes on from %s, and there was %s", e.Checkpoint, newest)
		}
		w.finish(r)
		inOrder(t, w)
	})
}
