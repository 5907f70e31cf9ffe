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
		w := emptyWorld(t)
		file := filepath.Join(w.work, "program.py")
		testenv.WriteFile(t, file, prelude+`
import threading
def write():
    while not os.path.exists("go"): time.sleep(0.01) # so that it is closed in the checkpoint
    while True:
        with open("state", "w") as f: f.write("x")
threading.Thread(target=write, daemon=True).start()
def tick(n): pass
`+loop)
		w.command = []string{"python3", file, w.work, "-", "-"}
		testenv.WriteFile(t, filepath.Join(w.work, "state"), "")
		original, _ := w.imageOf()
		w.lets("go")
		testenv.Eventually(t, testenv.Soon, "it writes", func() bool {
			info, err := os.Stat(filepath.Join(w.work, "state"))
			return err == nil && info.Size() > 0
		})
		job := w.from()
		r := job.startsFrom(w)
		r.says("warning: " + filepath.Join(w.work, "state") + " was written to while it was copied")
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
