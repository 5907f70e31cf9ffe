package migrate

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cucriu/internal/jobs"
	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// TestALongJobAndANetworkThatIsCut when the source has decided: the job goes on there once the
// network is back.
func TestALongJobAndANetworkThatIsCut(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		j := startJob(t, p, p.A)
		stop := j.watch()
		marks := t.TempDir()
		script, goOn := filepath.Join(marks, "wait"), filepath.Join(marks, "go-on")
		testenv.WriteFile(t, script, "#!/bin/sh\nwhile [ ! -e "+goOn+" ]; do sleep 0.05; done\n")
		if err := os.Chmod(script, 0o755); err != nil {
			t.Fatal(err)
		}
		p.A.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
		p.A.UseFailpoint("job.left=run " + script)
		j.Prepare(p.B)
		done := make(chan error, 1)
		var out string
		go func() {
			var err error
			out, err = p.A.Try("cucriu", "migrate", "--job", "train", "--to", "b")
			done <- err
		}()
		testenv.Eventually(t, 3*testenv.Soon, "the source has decided", func() bool { return testenv.Exists(filepath.Join(marks, "job.left")) || len(done) > 0 })
		if len(done) > 0 {
			t.Fatalf("the migration ended before: %v: %s", <-done, out)
		}
		p.Cut()
		testenv.WriteFile(t, goOn, "")
		testenv.Eventually(t, 3*testenv.Soon, "the destination has noticed", func() bool { return len(receives(p.B)) == 0 })
		if m := j.moveAt(p.B); m.State != jobs.MovePromised {
			t.Errorf("the destination is %+v", m)
		}
		p.Heal()
		if err := <-done; err != nil {
			t.Logf("%s", p.A.Run("cucriu", "recover"))
		}
		t.Logf("%s", out)
		j.settled(p.B, p.A)
		stop()
	})
}

// TestALongJobWhoseSupervisorIsKilledMeanwhile does not move, and the same command goes on with it.
func TestALongJobWhoseSupervisorIsKilledMeanwhile(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		j := startJob(t, p, p.A)
		j.Prepare(p.B)
		p.A.UseFailpoint("job.stopped=kill " + supervisorOf(t, p.A) + "+error")
		j.cucriuFails(p.A, 4, []string{"migrate", "--job", "train", "--to", "b"}, "the same command resumes from its newest checkpoint")
		p.A.Setenv("CUCRIU_FAILPOINT", "")
		j.again(p.A)
		j.is(p.A)
		p.A.Run("cucriu", "recover")
		j.settled(p.A, p.B)

		// With its supervisor gone, it can leave all the same.
		p.A.UseFailpoint("job.ready=kill " + supervisorOf(t, p.A))
		j.Prepare(p.B)
		t.Logf("%s", p.A.Run("cucriu", "migrate", "--job", "train", "--to", "b"))
		j.settled(p.B, p.A)
		j.cucriuFails(p.A, 33, j.args, "has moved to b")
	})
}

func supervisorOf(t *testing.T, h *hosts.Host) string {
	t.Helper()
	var list []jobs.Local
	if err := json.Unmarshal([]byte(h.Run("cucriu", "jobs", "list", "--json")), &list); err != nil || len(list) != 1 {
		t.Fatalf("the jobs of host %s: %v %v", h.Name, list, err)
	}
	return strconv.Itoa(list[0].PID)
}

// TestALongJobAndADiskThatIsFullThere goes on here.
func TestALongJobAndADiskThatIsFullThere(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		j := startJob(t, p, p.A)
		p.A.Run("cucriu", "jobs", "checkpoint", "train")
		p.B.SmallDisk(j.dir, "4m")
		if err := os.Chmod(p.B.Path(j.dir), 0o700); err != nil {
			t.Fatal(err)
		}
		out := j.fails(p.A, p.B, 3, "has room for")
		if strings.Contains(out, "stays here") {
			t.Errorf("it was touched: %s", out)
		}
		j.is(p.A)
	})
}

func (j *longJob) moveAt(h *hosts.Host) (m jobs.Move) {
	j.t.Helper()
	data, err := os.ReadFile(h.Path(filepath.Join(j.dir, "move.json")))
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		j.t.Error(err)
	}
	return m
}
