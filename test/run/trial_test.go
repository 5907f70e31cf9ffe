package run

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cucriu/hooks/image"
	"cucriu/internal/jobs"
	"cucriu/internal/testenv"
)

// trials returns the trial restores of the checkpoints, as cucriu jobs list shows them.
func (w *world) trials() map[string]image.Trial {
	w.t.Helper()
	out, err := w.host.Cucriu("jobs", "list", "--json", w.dir)
	var all []struct {
		Name  string
		Trial *image.Trial
	}
	if err == nil {
		err = json.Unmarshal([]byte(out), &all)
	}
	if err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	trials := make(map[string]image.Trial)
	for _, c := range all {
		if c.Trial != nil {
			trials[c.Name] = *c.Trial
		}
	}
	return trials
}

// TestTheFirstCheckpointIsTried, and no other, as long as the job stays of one kind.
func TestTheFirstCheckpointIsTried(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		w.host.Setenv(connectVariable, listen(t))
		r := w.run("--keep", "10", "--every", "0")
		w.ticks(2)
		w.checkpoint()
		r.says("a trial restore without the GPUs has shown that it can be restored")
		w.checkpoint()
		w.checkpoint()
		r.kill()
		r = w.run("--keep", "10", "--every", "0")
		r.says("supervised again")
		w.checkpoint()
		first := w.trials()["000001"]
		if first.Outcome != image.TrialRestores {
			t.Errorf("trial: %v", first)
		}
		r.awaits("the last checkpoint is taken for like the first", func() bool { return w.trials()[w.newest()] == first })
		w.finish(r)
		inOrder(t, w)
	})
}

// TestAJobWhoseCheckpointsCannotBeRestoredIsToldSo once there is one, and runs on.
func TestAJobWhoseCheckpointsCannotBeRestoredIsToldSo(t *testing.T) {
	testenv.Parallel(t)
	for _, kind := range unrestorable {
		t.Run(kind.name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newMixedWorld(t)
				s := w.stopAt("jobs.dumped")
				r := w.runAs(s.host, "--stage", "disk", "--every", "0") // the next checkpoint would end the trial
				w.ticks(2)
				made := make(chan error, 1)
				go func() {
					_, err := w.host.Cucriu("jobs", "checkpoint", w.dir)
					made <- err
				}()
				s.await(r)
				kind.edit(t, glob(filepath.Join(w.dir, "staged"), "*/image")[0])
				s.goOn()
				if err := <-made; err != nil {
					t.Error(err)
				}
				r.says("checkpoint 000001 cannot be restored, as a trial restore has shown")
				if why := w.trials()["000001"]; why.Outcome != image.TrialFails {
					t.Errorf("it is shown as %v", why)
				}
				if e, _ := w.last(jobs.EventFailed); e.Checkpoint != "000001" {
					t.Errorf("the event is %v", e)
				}
				w.checkpoint() // all the same
				r.says("checkpoint 000002")
				w.finish(r)
			})
		})
	}
}

// TestATrialHoldsNobody: neither the next checkpoint nor the end of the job waits for a trial that
// hangs, and it ends with its supervisor.
func TestATrialHoldsNobody(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		criu := filepath.Join(t.TempDir(), "criu")
		// In the sandbox of a trial, its parent is the first process.
		script := "#!/bin/sh\n[ $PPID = 1 ] && exec sleep 987654\nexec " + testenv.Criu(t) + ` "$@"` + "\n"
		if err := os.WriteFile(criu, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		hanging := func() (pids []int) {
			for _, pid := range testenv.PIDs() {
				if slices.Equal(testenv.CommandLine(pid), []string{"sleep", "987654"}) {
					pids = append(pids, pid)
				}
			}
			return pids
		}
		r := w.run("--criu", criu)
		var first []int
		r.awaits("a trial hangs", func() bool { first = hanging(); return len(first) > 0 })
		r.verified(2)
		r.awaits("the first trial has ended", func() bool { return !slices.Contains(hanging(), first[0]) })
		r.awaits("another hangs", func() bool { return len(hanging()) > 0 })
		r.kill()
		testenv.Eventually(t, testenv.Soon, "the trial ends with its supervisor", func() bool { return len(hanging()) == 0 })
		w.ticks(2)
		r = w.run("--criu", criu)
		r.awaits("a trial hangs", func() bool { return len(hanging()) > 0 })
		w.finish(r)
		inOrder(t, w)
	})
}

// TestNothingIsTriedIfItIsSwitchedOff by the option.
func TestNothingIsTriedIfItIsSwitchedOff(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run("--probe=off")
		r.verified(2)
		if all := w.trials(); len(all) > 0 {
			t.Errorf("trials: %v", all)
		}
		w.finish(r)
	})
}
