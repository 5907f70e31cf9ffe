package run

import (
	"net"
	"os"
	"os/exec"
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

// TestAJobKeepsTheSocketsThatTheOriginalRemoves: programs remove their temporary directories at their end, and the
// kernel unmounts what is mounted on a directory that is removed. Jobs that are started afterwards have the
// sockets, too.
func TestAJobKeepsTheSocketsThatTheOriginalRemoves(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		const program = `
import os, socket, sys, tempfile, time
path = tempfile.mkdtemp(dir=sys.argv[1]) + "/listener"
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
		tmp := t.TempDir()
		w.command = []string{"python3", "-c", program, tmp}
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
		sockets, err := filepath.Glob(filepath.Join(tmp, "*"))
		if err != nil || len(sockets) != 1 {
			t.Fatal(sockets, err)
		}
		service := filepath.Join(tmp, "service")
		listener, err := net.Listen("unix", service)
		must(t, err)
		defer listener.Close()
		elsewhere := filepath.Join(t.TempDir(), "checkpoint") // without its job
		out, err := exec.Command("cp", "-a", filepath.Join(w.dir, "checkpoints", "000001"), elsewhere).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		jobs := []*world{w.from(), w.from(), w.from(), w.from()}
		runs := []*run{jobs[0].startFrom(w), jobs[1].startFrom(&world{t: t, dir: elsewhere, work: w.work})}
		for i, r := range runs {
			r.says(", " + tmp)
			r.says("warning: programs of this host listen at " + service + ", which the job cannot reach")
			r.says("--private " + sockets[0])
			connects(jobs[i])
		}
		original.signal(unix.SIGTERM)
		original.ends(requeue)
		must(t, os.RemoveAll(sockets[0]))

		runs = append(runs, jobs[2].startFrom(w))
		runs[2].says("from image")
		runs = append(runs, jobs[3].startFrom(w, "--private", sockets[0])) // which makes it, to mount on
		for i, job := range jobs {
			if i > 1 {
				runs[i].says(sockets[0] + " is gone on this host")
			}
			runs[i].says("from image")
			connects(job)
			runs[i].signal(unix.SIGTERM)
			runs[i].ends(requeue)
			runs[i] = job.again()
			runs[i].says("D resumes from checkpoint 000001")
			connects(job)
			runs[i].signal(unix.SIGTERM)
			runs[i].ends(requeue)
		}
	})
}

// TestNobodyLeadsTheSocketsOfAJobElsewhere who puts a link in the place of a directory that is gone.
func TestNobodyLeadsTheSocketsOfAJobElsewhere(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		tmp, elsewhere := t.TempDir(), t.TempDir()
		sockets := filepath.Join(tmp, "sockets")
		w.command = []string{"python3", "-c", `
import os, socket, sys, time
listeners = []
for name in sys.argv[1:]:
    os.mkdir(name)
    listeners.append(socket.socket(socket.AF_UNIX))
    listeners[-1].bind(name + "/listener")
    listeners[-1].listen()
print("listens", flush=True)
while True: time.sleep(0.02)
`, sockets, sockets + "-too"}
		original := w.run("--every", "0")
		testenv.Eventually(t, testenv.Soon, "it listens", func() bool { return strings.Contains(w.output(), "listens") })
		w.checkpoint()
		original.signal(unix.SIGTERM)
		original.ends(requeue)
		must(t, os.RemoveAll(sockets))
		must(t, os.Symlink(elsewhere, sockets))
		job := w.from()
		job.startFrom(w).ends(3, "private copy of "+tmp, sockets+" is no directory any more", "remove what has this name now")
		if made, err := os.ReadDir(elsewhere); err != nil || len(made) > 0 {
			t.Error(made, err)
		}
		must(t, os.Remove(sockets))
		r := job.startFrom(w)
		r.says("from image")
		r.signal(unix.SIGTERM)
		r.ends(requeue)

		near := worldOn(t, w.host)
		near.dir = filepath.Join(tmp, "D")
		near.startFrom(w).ends(3, "gets a copy of "+tmp+", and "+near.dir+" is in it",
			"or name --private "+sockets+" --private "+sockets+"-too, if nobody removes that while the job runs")
		r = near.startFrom(w, "--private", sockets, "--private", sockets+"-too")
		r.says("from image")
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

// TestAGoneDirectoryOfSocketsAndFilesStartsNoJob, in whichever directory it was.
func TestAGoneDirectoryOfSocketsAndFilesStartsNoJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		disk := filepath.Join(t.TempDir(), "disk")
		w.command = []string{"python3", "-c", `
import os, socket, sys, time
os.mkdir(sys.argv[1])
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1] + "/listener")
listener.listen()
log = open(sys.argv[1] + "/log", "w")
print("listens", flush=True)
while True: time.sleep(0.02)
`, disk}
		original := w.run("--every", "0")
		testenv.Eventually(t, testenv.Soon, "it listens", func() bool { return strings.Contains(w.output(), "listens") })
		w.checkpoint()
		original.signal(unix.SIGTERM)
		original.ends(requeue)
		must(t, os.RemoveAll(disk))
		w.from().startFrom(w).ends(3, "private copy of "+filepath.Dir(disk), disk+": no such file or directory")
	})
}
