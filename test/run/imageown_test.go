package run

import (
	"os"
	"path/filepath"
	"strings"
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
		job.startFrom(&world{t: t, dir: w.dir, work: filepath.Dir(w.host.RunDir)}).ends(3, "hides the run directory")
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

// TestAPrivateDirectoryIsNotReplacedByTheHosts in the jobs that are started from an image of a job from an image.
func TestAPrivateDirectoryIsNotReplacedByTheHosts(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.work = filepath.Join(w.work, "below")
		must(t, os.Mkdir(w.work, 0o755))
		w.host.Setenv(jobVariable, w.work)
		original, _ := w.imageOf()
		job := w.from()
		r := job.startsFrom(w)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		w.from().startFrom(&world{t: t, dir: job.dir, work: filepath.Dir(w.work)}).ends(3, w.work+" of its own")

		testenv.WriteFile(t, filepath.Join(job.dir, "job.json"), "{")
		image := filepath.Join(job.dir, "checkpoints", "000001")
		w.from().startFrom(&world{t: t, dir: image, work: w.work}).ends(3, "job.json does not say which files")
		w.stop(0)
		original.ends(0)
	})
}

// TestALinkOnTheWayToTheJobOfAnImage leads to what that job has of its own, of which others have theirs.
func TestALinkOnTheWayToTheJobOfAnImage(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		parent, link := filepath.Dir(w.dir), filepath.Join(t.TempDir(), "link")
		must(t, os.Symlink(parent, link))
		w.dir = filepath.Join(link, "D")
		original, image := w.imageOf()
		linked := filepath.Join(t.TempDir(), "image")
		must(t, os.Symlink(image, linked))
		if out, err := w.host.Cucriu("inspect", linked); err != nil || !strings.Contains(out, "files of their own in /dev/shm") {
			t.Errorf("%v\n%s", err, out)
		}
		below := &world{t: t, host: w.host, dir: filepath.Join(parent, "D", "below")}
		below.startFrom(w).ends(3, "cannot be there, too")
		job := w.from()
		r := job.startsFrom(w)
		job.checks()
		if all, err := os.ReadDir(filepath.Join(job.dir, "private")); err != nil || len(all) != 1 {
			t.Errorf("%v: private copies %v, want that of %s alone", err, all, w.work)
		}
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		r = job.again()
		r.resumed("000001")
		job.checks()
		for _, r := range []*run{r, original} {
			r.ticksOn()
			r.w.stop(0)
			r.ends(0)
		}
	})
}

// TestAnImageOutlivesTheSocketsOfItsJob, whose directory the job has removed at its end.
func TestAnImageOutlivesTheSocketsOfItsJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		const program = `
import os, socket, sys, time
path = sys.argv[1] + "/listener"
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
while True:
    client = socket.socket(socket.AF_UNIX)
    try:
        client.connect(path)
        listener.accept()[0].close()
        print("connected", flush=True)
    except OSError as err:
        print("lost:", err, flush=True)
    client.close()
    time.sleep(0.02)
`
		w := emptyWorld(t)
		sockets := filepath.Join(t.TempDir(), "sockets")
		must(t, os.Mkdir(sockets, 0o700))
		w.command = []string{"python3", "-c", program, sockets}
		connects := func(w *world) {
			t.Helper()
			before := len(w.output())
			testenv.Eventually(t, testenv.Soon, "it connects to its own socket", func() bool {
				return strings.Contains(w.output()[before:], "connected\nconnected")
			})
			if strings.Contains(w.output(), "lost") {
				t.Fatalf("%s", w.output())
			}
		}
		original := w.run("--every", "0")
		original.says("D: python3")
		connects(w)
		w.checkpoint()
		original.signal(unix.SIGTERM)
		original.ends(requeue)
		must(t, os.RemoveAll(sockets))

		job := w.from()
		r := job.startFrom(w)
		r.says(sockets + " is gone on this host")
		r.says("from image")
		connects(job)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		r = job.again()
		r.says("D resumes from checkpoint 000001")
		connects(job)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
	})
}

// TestAGoneDirectoryOfFilesStartsNoJob: a disk may not be mounted.
func TestAGoneDirectoryOfFilesStartsNoJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		original, _ := w.imageOf()
		w.stop(0)
		original.ends(0)
		must(t, os.RemoveAll(w.work))
		job := w.from()
		job.startFrom(&world{t: t, dir: w.dir, work: t.TempDir()}).ends(3, "private copy of "+w.work, "no such file or directory")
		if testenv.Exists(w.work) || testenv.Exists(filepath.Join(job.dir, "private")) {
			t.Error("something is left")
		}
	})
}
