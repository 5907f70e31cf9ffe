package migrate

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cucriu/internal/jobs"
	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// jobStep is a step of a long job's move.
type jobStep struct {
	step  string
	there bool // it is the destination's
	moves bool // the job goes on there if a program is killed
}

var jobSteps = []jobStep{
	{"job.arriving", true, false}, // at first: nothing says what the directory there is
	{"job.leaving", false, false},
	{"job.ahead", false, false},
	{"job.stopped", false, false},
	{"job.ready", false, false},
	{"job.left", false, true},
	{"job.taking", true, false},
	{"job.promise", true, false},
	{"job.promised", true, false},
	{"job.arrived", true, true},
	{"job.starting", true, true},
}

// TestALongJobIsOnOneHostWhereverAProgramIsKilled, at each step of the move, on both hosts.
func TestALongJobIsOnOneHostWhereverAProgramIsKilled(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		two := hosts.HostOptions{GPUs: 2}
		p := hosts.New(t, hosts.Options{A: two, B: two, OneBootID: true})
		j := startJob(t, p, p.A) // its library moves, too
		stop := j.watch()
		from, to := p.A, p.B
		for _, s := range jobSteps {
			if from, to = j.killedAt(from, to, s); t.Failed() {
				return
			}
		}
		stop()
	})
}

// killedAt moves the job while a program is killed at a step, and returns the host on which the job is
// then, and the other.
func (j *longJob) killedAt(from, to *hosts.Host, s jobStep) (goesOn, other *hosts.Host) {
	j.t.Helper()
	at := map[bool]*hosts.Host{false: from, true: to}[s.there]
	j.at(from, to, at, s.step, "kill")
	j.recover()
	goesOn, other = from, to
	if s.moves && !j.missed {
		goesOn, other = to, from
	}
	j.settled(goesOn, other)
	return goesOn, other
}

// at moves the job with a failpoint on one of the hosts.
func (j *longJob) at(from, to, at *hosts.Host, step, action string, args ...string) string {
	j.t.Helper()
	j.t.Logf("%s at %s of host %s, from host %s", action, step, at.Name, from.Name)
	marks := j.t.TempDir()
	at.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
	at.UseFailpoint(step + "=" + action)
	j.Prepare(to)
	out, _ := from.Try("cucriu", append([]string{"migrate", "--job", j.dir, "--to", to.Name}, args...)...)
	at.Setenv("CUCRIU_FAILPOINT", "")
	if j.missed = !testenv.Exists(filepath.Join(marks, step)); j.missed && !j.soaks {
		j.t.Fatalf("%s was not reached:\n%s", step, out)
	}
	j.t.Logf("%s", out)
	return out
}

// recover recovers both hosts, the source first: the other one may wait for what it decides.
func (j *longJob) recover() {
	j.t.Helper()
	both := j.pair.Hosts()
	if j.Host != both[0] {
		slices.Reverse(both)
	}
	for _, h := range both {
		recovered, err := h.Try("cucriu", "recover")
		if err != nil {
			j.t.Errorf("recover on host %s: %v", h.Name, err)
		}
		j.t.Logf("recover on host %s: %s", h.Name, recovered)
	}
}

// settled fails the test unless the job runs on one host, and nothing of the move is left.
func (j *longJob) settled(on, other *hosts.Host) {
	j.t.Helper()
	j.is(on)
	on.Run("cucriu", "jobs", "checkpoint", "train")
	var m jobs.Move
	data, err := os.ReadFile(other.Path(filepath.Join(j.dir, "move.json")))
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if !os.IsNotExist(err) && (err != nil || m.State != jobs.MoveLeft || !m.PeerKnows) {
		j.t.Errorf("the job runs on host %s, and host %s has of it: %s %v", on.Name, other.Name, data, err)
	}
	for _, h := range j.pair.Hosts() {
		for _, name := range []string{".arriving", ".packed"} {
			if testenv.Exists(h.Path(filepath.Join(j.dir, name))) {
				j.t.Errorf("%s is left on host %s", name, h.Name)
			}
		}
	}
}
