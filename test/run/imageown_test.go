package run

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestNoJobTakesThePrivateFilesOfAnother that was refused or removed: they are copies of other directories.
func TestNoJobTakesThePrivateFilesOfAnother(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		original, _ := w.imageOf()
		job := w.from()
		must(t, os.Mkdir(job.dir, 0o700))
		host := w.host.For(t)
		host.UseFailpoint("image.laid-out=error")
		if out, err := host.Cucriu("run", "--dir", job.dir, "--image", w.dir, "--every", "0"); err == nil {
			t.Errorf("it runs\n%s", out)
		}
		if testenv.Exists(filepath.Join(job.dir, "private")) {
			t.Error("the private files of a job that was refused are left")
		}
		r := job.startsFrom(w)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		if out, err := w.host.Cucriu("jobs", "rm", job.dir, "--yes", "--keep-output"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		job.startFrom(w).ends(3, filepath.Join(job.dir, "private")+" has files of an earlier job")
		if !testenv.Exists(filepath.Join(job.work, "status")) {
			t.Error("files that were to be kept are gone")
		}
		w.stop(0)
		original.ends(0)
	})
}
