package run

import (
	"os"
	"path/filepath"
	"testing"

	"cucriu/internal/testenv"
)

// TestACopyOfWhatIsWrittenMeanwhile may be torn, and the job is started with a warning that names the file.
func TestACopyOfWhatIsWrittenMeanwhile(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		state := filepath.Join(w.work, "state")
		testenv.WriteFile(t, state, "")
		original, _ := w.imageOf()
		job := w.from()
		job.host = w.host.For(t)
		job.host.UseFailpoint("image.copying=run " + testenv.Script(t, "echo more >>"+state))
		r := job.startFrom(w)
		r.says("warning: " + state + " was written to while it was copied")
		r.says("from image")
		job.ticks(3)
		for _, r := range []*run{r, original} {
			r.w.stop(0)
			r.ends(0)
		}
	})
}

// TestACopyEndsWithItsSupervisor: it would write into what the next start copies.
func TestACopyEndsWithItsSupervisor(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		large, err := os.Create(filepath.Join(w.work, "large"))
		must(t, err)
		for range 256 {
			_, err = large.Write(make([]byte, 1<<20))
			must(t, err)
		}
		must(t, large.Close())
		original, _ := w.imageOf()
		job := w.from()
		r := job.startFrom(w)
		r.awaits("it copies", func() bool { return testenv.Exists(filepath.Join(job.dir, "private.partial", "0", "large")) })
		r.kill()
		testenv.Eventually(t, testenv.Soon, "the copy ends", func() bool { return len(testenv.Running("cp")) == 0 })
		if testenv.Exists(filepath.Join(job.dir, "private")) {
			t.Error("the copy was not cut off")
		}
		r = job.startsFrom(w)
		for _, r := range []*run{r, original} {
			r.w.stop(0)
			r.ends(0)
		}
	})
}
