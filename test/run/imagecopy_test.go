package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// TestAJobIsToldWhatItWritesAndShares, which a resume puts back although others may write to it.
func TestAJobIsToldWhatItWritesAndShares(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		shared := filepath.Join(t.TempDir(), "shared")
		const program = `cd /; while ! [ -e "$0/go" ]; do sleep 0.05; done; exec sleep 1000 >>"$1"`
		w.command = []string{"sh", "-c", program, w.work, shared}
		original := w.run("--every", "0")
		original.says("D: sh")
		w.checkpoint()
		job := w.from()
		r := job.startFrom(w)
		r.says("from image")
		for range 2 {
			if out, err := w.host.Cucriu("jobs", "checkpoint", job.dir); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		if strings.Contains(r.said(), "shares that with the host") {
			t.Errorf("it writes to nothing yet:\n%s", r.said())
		}
		testenv.WriteFile(t, filepath.Join(job.work, "go"), "")
		testenv.Eventually(t, testenv.Soon, "it writes there", func() bool { return testenv.Exists(shared) })
		if out, err := w.host.Cucriu("jobs", "checkpoint", job.dir); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		r.says("warning: the job writes to " + shared + ", and shares that with the host")
		for _, r := range []*run{r, original} {
			r.signal(unix.SIGTERM)
			r.ends(requeue)
		}
	})
}
