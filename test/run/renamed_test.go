package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestACheckpointMadeWhileTheDirectoryHadAnotherNameIsNotKeptAsGood: its image names the job's output
// by that, and criu would not find it.
func TestACheckpointMadeWhileTheDirectoryHadAnotherNameIsNotKeptAsGood(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		stage, aside := t.TempDir(), w.dir+".aside"
		w.flags = []string{"--every", "0", "--stage", stage}
		// The directory is away from a step of the next dump on, until its image is complete.
		runAndThen := func(then string) *run {
			host := w.host.For(t)
			away, back := testenv.Script(t, "mv "+w.dir+" "+aside), testenv.Script(t, "mv "+aside+" "+w.dir+" && "+then)
			host.UseFailpoint("dump.manifest=run " + away + ",jobs.dumped=run " + back)
			host.Setenv("CUCRIU_FAILPOINT_MARKS", t.TempDir())
			return w.runAs(host)
		}
		r := runAndThen("true")
		w.ticks(3)
		out, err := w.host.Cucriu("jobs", "checkpoint", w.dir)
		if err == nil || !strings.Contains(out, "made while the job directory had another name") || w.newest() != "" {
			t.Errorf("%v: %s; the newest is %q", err, out, w.newest())
		}
		w.checkpoint()
		good := w.newest()

		// What an earlier supervisor had staged may be all that there is of the last interval.
		r.kill()
		reached := filepath.Join(t.TempDir(), "reached")
		r = runAndThen("touch " + reached + " && sleep 1000") // until it is killed
		r.says("supervised again")
		go func() { _, _ = w.host.Cucriu("jobs", "checkpoint", w.dir) }()
		r.awaits("the image is staged", func() bool { return testenv.Exists(reached) })
		r.killsAll()
		r = w.goesOn(good)
		if bad := w.newest(); bad <= good || !strings.Contains(r.said(), "checkpoint "+bad+" is set aside") {
			t.Errorf("the newest is %s, and it says %s", bad, r.said())
		}

		// An earlier version kept such a checkpoint, as one does for which the other name is there.
		r.kill()
		r = runAndThen("mkdir " + aside + " && touch " + aside + "/output.log")
		r.says("supervised again")
		w.checkpoint()
		must(t, os.RemoveAll(aside))
		r.killsAll()
		r = w.goesOn(good)
		if !strings.Contains(r.said(), "trying checkpoint "+good+": it was made while the job directory had another name") {
			t.Errorf("it says %s", r.said())
		}
		w.finish(r)
	})
}
