package migrate

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"cucriu/hooks/jobs"
	"cucriu/internal/testenv"
	"cucriu/test/hosts"
)

// TestALongJobIsOnOneHostWhereverAProgramIsKilled, at each step of the move, on both hosts.
func TestALongJobIsOnOneHostWhereverAProgramIsKilled(t *testing.T) {
	steps := []struct {
		step  string
		there bool // it is the destination's
		moves bool // the job goes on there
	}{
		{"job.leaving", false, false},
		{"job.ahead", false, false},
		{"job.stopped", false, false},
		{"job.ready", false, false},
		{"job.left", false, true},
		{"job.arriving", true, false},
		{"job.taking", true, false},
		{"job.promise", true, false},
		{"job.promised", true, false},
		{"job.arrived", true, true},
		{"job.starting", true, true},
	}
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		j := startJob(t, p, p.A)
		stop := j.watch()
		from, to := p.A, p.B
		for _, s := range steps {
			at := map[bool]*hosts.Host{false: from, true: to}[s.there]
			j.at(from, to, at, s.step, "kill")
			j.recover()
			goesOn, other := from, to
			if s.moves {
				goesOn, other = to, from
			}
			j.settled(goesOn, other)
			from, to = goesOn, other
			if t.Failed() {
				return
			}
		}
		stop()
	})
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
	if !testenv.Exists(filepath.Join(marks, step)) {
		j.t.Fatalf("%s was not reached:\n%s", step, out)
	}
	j.t.Logf("%s", out)
	return out
}

// recover recovers both hosts.
func (j *longJob) recover() {
	j.t.Helper()
	for _, h := range j.pair.Hosts() {
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
	if !os.IsNotExist(err) && (err != nil || m.State != jobs.MoveLeft || !m.Known) {
		j.t.Errorf("the job runs on host %s, and host %s has of it: %s %v", on.Name, other.Name, data, err)
	}
	for _, h := range j.pair.Hosts() {
		if testenv.Exists(h.Path(filepath.Join(j.dir, ".arriving"))) {
			j.t.Errorf("what arrives is left on host %s", h.Name)
		}
	}
}
