package migrate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cucriu/internal/kit/guest"
	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// longJob is a job of cucriu run that may be on either host.
type longJob struct {
	*hosts.Job
	t    *testing.T
	pair *hosts.Pair
	dir  string // D, below /tmp: each host has its own
	args []string

	soaks, missed bool // see world; the last move did not come to its step
	isFromImage   bool // it takes its files along
}

// Prepare makes the job's directories on a host, except for those that come along.
func (j *longJob) Prepare(on *hosts.Host) {
	j.t.Helper()
	if !j.isFromImage {
		j.Job.Prepare(on)
	}
}

// startJob starts a long job on a host, with a supervisor.
func startJob(t *testing.T, p *hosts.Pair, on *hosts.Host, flags ...string) *longJob {
	t.Helper()
	return startJobUnder(t, p, on, nil, flags...)
}

// startJobUnder is startJob for a job that another command starts.
func startJobUnder(t *testing.T, p *hosts.Pair, on *hosts.Host, under []string, flags ...string) *longJob {
	t.Helper()
	j := &longJob{t: t, pair: p, dir: filepath.Join("/tmp", "job-"+filepath.Base(t.TempDir())+strings.ReplaceAll(t.Name(), "/", "-"))}
	j.args = append([]string{"run", "--dir", j.dir, "--name", "train", "--every", "0", "--moved-status", "33"}, flags...)
	program := testenv.Artefact(t, "make workload", "build", "workload", "cudawork")
	args := append(append(j.args, "--"), append(under, program, "--mib", "16", "--loaders", "2", "--dir")...)
	j.Job = on.StartProgram("cucriu", args...)
	j.begins(on)
	return j
}

// begins waits until the job runs for the first time.
func (j *longJob) begins(on *hosts.Host) {
	j.t.Helper()
	j.t.Cleanup(func() {
		if !j.t.Failed() {
			return
		}
		for _, h := range j.pair.Hosts() {
			for _, name := range []string{"events.jsonl", "supervisor.log", "move.json"} {
				if data, err := os.ReadFile(h.Path(filepath.Join(j.dir, name))); err == nil {
					j.t.Logf("%s on host %s:\n%s", name, h.Name, data)
				}
			}
		}
	})
	j.WaitTicks(on, 3)
	j.awaitSupervisor(on)
}

// awaitSupervisor waits until the job may be moved: it runs before its supervisor takes requests.
func (j *longJob) awaitSupervisor(on *hosts.Host) {
	j.t.Helper()
	testenv.Eventually(j.t, testenv.Soon, "the job is listed as running", func() bool { return j.listed(on, "running") })
}

// listed reports whether the only job of a host is in a state.
func (j *longJob) listed(on *hosts.Host, state string) bool {
	out, err := on.Try("cucriu", "jobs", "list")
	return err == nil && strings.Contains(out, state)
}

// roots lists the job's processes on a host, without those of cucriu.
func (j *longJob) roots(on *hosts.Host) []hosts.Process {
	var found []hosts.Process
	for _, p := range on.Find(j.Dir) {
		if filepath.Base(p.Args[0]) == "cudawork" {
			found = append(found, p)
		}
	}
	return found
}

// is fails the test unless the job is on this host only, and runs there with its memory intact.
func (j *longJob) is(on *hosts.Host) {
	j.t.Helper()
	j.WaitTicks(on, 3)
	j.Check(on)
	for _, h := range j.pair.Hosts() {
		if n := len(j.roots(h)); (n > 0) != (h == on) {
			j.t.Fatalf("the job is to run on host %s; host %s has %d processes of it", on.Name, h.Name, n)
		}
	}
	j.Host = on
}

// move moves the job, and fails the test unless it is there afterwards.
func (j *longJob) move(from, to *hosts.Host, args ...string) string {
	j.t.Helper()
	j.is(from)
	j.Prepare(to)
	before := j.Tick(from)
	j.awaitSupervisor(from)
	out := from.Run("cucriu", append([]string{"migrate", "--job", j.dir, "--to", to.Name}, args...)...)
	j.t.Logf("%s", out)
	j.is(to)
	if now := j.Tick(to); now < before {
		j.t.Errorf("the job was at tick %d, and goes on at %d", before, now)
	}
	return out
}

// watchJob looks all the time whether the job runs on both hosts.
func (j *longJob) watch() (stop func()) {
	done := make(chan struct{})
	var wait sync.WaitGroup
	var seen string
	wait.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
			if a, b := j.running(j.pair.A), j.running(j.pair.B); a != "" && b != "" && j.running(j.pair.A) != "" {
				seen = fmt.Sprint(a, b)
			}
		}
	})
	end := sync.OnceFunc(func() { close(done); wait.Wait() })
	j.t.Cleanup(end)
	return func() {
		j.t.Helper()
		if end(); seen != "" {
			j.t.Errorf("two copies of the job ran at once: %s", seen)
		}
	}
}

func (j *longJob) running(on *hosts.Host) string {
	for _, p := range j.roots(on) {
		if p.Held() == "" {
			return p.String()
		}
	}
	return ""
}

func TestALongJobMovesThereAndBack(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		j := startJob(t, p, p.A, "--keep", "2", "--files-limit=100M")
		stop := j.watch()
		j.move(p.A, p.B)
		if !j.listed(p.A, "moved to ") {
			t.Error("the source does not say that the job has moved")
		}
		p.B.Run("cucriu", "jobs", "checkpoint", "train")
		p.B.Run("cucriu", "jobs", "verify", "train")
		j.move(p.B, p.A)
		j.move(p.A, p.B)
		stop()
	})
}

// TestALongJobTakesItsLibraryAlong: criu maps the file again that the job had mapped.
func TestALongJobTakesItsLibraryAlong(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		two := hosts.HostOptions{GPUs: 2}
		p := hosts.New(t, hosts.Options{A: two, B: two, OneBootID: true})
		j := startJob(t, p, p.A)
		if maps := p.A.Run("sh", "-c", "cat /proc/[0-9]*/maps"); !strings.Contains(maps, filepath.Join(j.dir, guest.File)) {
			t.Error("the job has no library, so the test shows nothing")
		}
		j.move(p.A, p.B)
		j.move(p.B, p.A)
	})
}

// TestALongJobReturnsToAHostWithDamagedCheckpoints: those that the source has are sent again, and the
// others are in nobody's way.
func TestALongJobReturnsToAHostWithDamagedCheckpoints(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		j := startJob(t, p, p.A)
		j.move(p.A, p.B) // 000001 ahead, and 000002
		p.B.Run("cucriu", "jobs", "checkpoint", "train")
		for _, name := range []string{"000002", "000003"} {
			p.B.Run("sh", "-c", "for f in "+j.dir+"/checkpoints/"+name+"/core-*.img; do echo x >$f; done")
		}
		if _, err := p.B.Try("cucriu", "jobs", "verify", "train"); err == nil {
			t.Fatal("no damage was found")
		}
		j.move(p.B, p.A)
		j.move(p.A, p.B)
		j.cucriuFails(p.B, 1, []string{"jobs", "verify", "train"}, "000002 is intact", "000003 is damaged", "1 of 4 checkpoints")
	})
}
