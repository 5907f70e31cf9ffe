package run

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// aboutFile is where a job reads who it is.
const aboutFile = "/run/cucriu-job/instance.json"

// aboutReader is a job that has the file with what it is open, locked and mapped, and its directory as working
// directory. It says again and again what it reads, and whether it could write there.
const aboutReader = `
import fcntl, json, mmap, os, sys, time
os.chdir("/run/cucriu-job")
f = open("instance.json")
fcntl.flock(f, fcntl.LOCK_EX)
shared = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
private = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
wrong = []
for name in "instance.json", "other", "../../run/cucriu-job/instance.json":
    try:
        open(name, "a")
        wrong.append(name)
    except OSError:
        pass
tick = 0
while True:
    tick += 1
    f.seek(0)
    says = dict(tick=tick, written=wrong, mode=oct(os.stat("instance.json").st_mode & 0o777), open=f.read(),
        shared=shared[:].decode(), private=private[:].decode(), named=open("instance.json").read())
    with open(sys.argv[1] + ".new", "w") as out:
        json.dump(says, out)
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    time.sleep(0.05)
`

// readBy is what a reader says.
type readBy struct {
	Tick                         int
	Written                      []string
	Mode                         string
	Open, Shared, Private, Named string
}

// instance is what a job can read of itself.
type instance struct {
	Version       int
	Name          string
	Directory     string
	HostDirectory string `json:"host_directory"`
	Incarnation   string
	Image         string
	GPUs          []struct{ UUID, PCI string }
	Ports         []struct {
		Address  string
		New, Old int
		UDP      bool
	}
	Host      string
	Addresses []string
}

// reads waits until the job has read another incarnation than before, by each way the same, and returns what it read.
func (w *world) reads(before string) (is instance) {
	w.t.Helper()
	var by readBy
	testenv.Eventually(w.t, 3*testenv.Soon, "the job reads what it is", func() bool {
		data, err := os.ReadFile(filepath.Join(w.work, "reads"))
		is = instance{}
		return err == nil && json.Unmarshal(data, &by) == nil && json.Unmarshal([]byte(by.Named), &is) == nil &&
			is.Incarnation != before && by.Open == by.Named && by.Shared == by.Named && by.Private == by.Named
	})
	if len(by.Written) > 0 || by.Mode != "0o644" {
		w.t.Errorf("the job can write %v, mode %s", by.Written, by.Mode)
	}
	host, _ := os.Hostname()
	if is.Version != 1 || is.Name != "D" || is.Host != host || is.Incarnation == "" || len(is.GPUs) != 1 ||
		is.GPUs[0].UUID == "" || is.GPUs[0].PCI == "" {
		w.t.Errorf("the job reads %+v", is)
	}
	return is
}

// TestAJobReadsWhoItIs in each sandbox anew: at its first start, from an image, after a preemption. It may have the
// file open, mapped, and its directory as working directory. It cannot write there, even as root.
func TestAJobReadsWhoItIs(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		testenv.WriteFile(t, filepath.Join(w.work, "reader.py"), aboutReader)
		w.command = []string{"python3", filepath.Join(w.work, "reader.py"), filepath.Join(w.work, "reads")}
		original := w.run("--every", "0")
		first := w.reads("")
		if first.Directory != w.dir || first.HostDirectory != "" || first.Image != "" || len(first.Ports) != 0 {
			t.Errorf("the job reads %+v", first)
		}
		if out, err := w.host.Cucriu("jobs", "checkpoint", w.dir); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		original.says("a trial restore without the GPUs")
		if out, err := w.host.Cucriu("inspect", filepath.Join(w.dir, "checkpoints", "000001")); err != nil ||
			strings.Contains(out, filepath.Dir(aboutFile)) {
			t.Errorf("%v\n%s", err, out)
		}
		var jobs []*world
		var runs []*run
		incarnations := []string{first.Incarnation}
		for i := range 2 {
			job, port := w.from(), testenv.FreePort(t)
			jobs = append(jobs, job)
			runs = append(runs, job.startFrom(w, "--publish", "127.0.0.1:"+port+":80", "--publish", "0:53/udp"))
			is := job.reads(first.Incarnation)
			image := filepath.Join(w.dir, "checkpoints", "000001")
			if is.Directory != w.dir || is.HostDirectory != job.dir || is.Image != image ||
				slices.Contains(incarnations, is.Incarnation) {
				t.Errorf("job %d reads %+v", i, is)
			}
			if p := is.Ports; len(p) != 2 || p[0].Address != "127.0.0.1" || strconv.Itoa(p[0].New) != port || p[0].Old != 80 ||
				p[0].UDP || p[1].New == 0 || p[1].Old != 53 || !p[1].UDP {
				t.Errorf("job %d reads the ports %+v", i, p)
			}
			incarnations = append(incarnations, is.Incarnation)
		}
		for i, job := range jobs {
			runs[i].signal(unix.SIGTERM)
			runs[i].ends(requeue)
			runs[i] = job.again()
			is := job.reads(incarnations[i+1])
			if is.HostDirectory != job.dir || slices.Contains(incarnations, is.Incarnation) {
				t.Errorf("job %d reads %+v", i, is)
			}
		}
		if again := w.reads(""); again.Incarnation != first.Incarnation {
			t.Errorf("the job that the image was made of reads %+v", again)
		}
		original.signal(unix.SIGTERM)
		original.ends(requeue)
		for _, r := range runs {
			r.signal(unix.SIGTERM)
			r.ends(requeue)
		}
		w.noProcesses()
	})
}

// TestAJobReadsItsPortsAfterItsSupervisorWasKilled, although it has what it read before open.
func TestAJobReadsItsPortsAfterItsSupervisorWasKilled(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		testenv.WriteFile(t, filepath.Join(w.work, "reader.py"), aboutReader)
		w.command = []string{"python3", filepath.Join(w.work, "reader.py"), filepath.Join(w.work, "reads")}
		original := w.run("--every", "0")
		first := w.reads("")
		if out, err := w.host.Cucriu("jobs", "checkpoint", w.dir); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		original.signal(unix.SIGTERM)
		original.ends(requeue)
		job := w.from()
		r := job.startFrom(w, "--publish", "127.0.0.1:0:80")
		r.says("published: ")
		before := job.reads(first.Incarnation)
		r.kill()
		port := testenv.FreePort(t)
		r = job.again("--publish", "127.0.0.1:"+port+":81")
		r.says("is supervised again")
		var is instance
		testenv.Eventually(t, testenv.Soon, "the job reads the new port", func() bool {
			is = job.reads(first.Incarnation)
			return len(is.Ports) == 1 && strconv.Itoa(is.Ports[0].New) == port && is.Ports[0].Old == 81
		})
		if is.Incarnation != before.Incarnation {
			t.Errorf("the job read %+v, and now %+v", before, is)
		}
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		r = job.again()
		job.reads(before.Incarnation)
		r.says("published: ")
		r.signal(unix.SIGTERM)
		r.ends(requeue)
	})
}

// TestTheRunDirectoryMayBeReachedByALink, as /var/run.
func TestTheRunDirectoryMayBeReachedByALink(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		link := filepath.Join(t.TempDir(), "link")
		must(t, os.MkdirAll(w.host.RunDir, 0o700))
		must(t, os.Symlink(w.host.RunDir, link))
		w.host.Setenv("CUCRIU_RUN_DIR", link)
		testenv.WriteFile(t, filepath.Join(w.work, "reader.py"), aboutReader)
		w.command = []string{"python3", filepath.Join(w.work, "reader.py"), filepath.Join(w.work, "reads")}
		r := w.run("--every", "0")
		first := w.reads("")
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		r = w.again()
		w.reads(first.Incarnation)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
	})
}
