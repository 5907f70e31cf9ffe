package migrate

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/jobs"
	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// TestALongJobThatCannotBeResumedThereGoesOnHere, also if a program is killed while it is given
// back.
func TestALongJobThatCannotBeResumedThereGoesOnHere(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		j := startJob(t, p, p.A)
		stop := j.watch()
		p.B.Setenv("CUCRIU_CRIU", "/bin/false")
		out := j.fails(p.A, p.B, 1, "could not resume", "stays here")
		if !strings.Contains(out, "its supervisor has ended") {
			t.Errorf("the cause is missing: %s", out)
		}
		j.settled(p.A, p.B)
		p.B.Setenv("CUCRIU_CRIU", testenv.Criu(t))

		for _, s := range []struct {
			step string
			at   *hosts.Host
		}{{"job.returning", p.B}, {"job.returned", p.B}} {
			j.at(p.A, p.B, s.at, s.step, "kill", "--start", "false")
			j.recover()
			j.settled(p.A, p.B)
		}
		j.at(p.A, p.B, p.A, "job.takeback", "kill", "--start", "false")
		testenv.Eventually(t, testenv.Soon, "its supervisor ends", func() bool { return len(p.A.Find("run", j.dir)) == 0 })
		j.recover()
		j.again(p.A)
		j.settled(p.A, p.B)
		j.move(p.A, p.B) // what could not be resumed before can be now
		stop()
	})
}

// TestALongJobDoesNotResumeAnOlderCheckpointThere: the newest fails twice at the destination, and the
// source, which has it, too, goes on from it. A person who takes the job gets what can be restored.
func TestALongJobDoesNotResumeAnOlderCheckpointThere(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		j := startJob(t, p, p.A)
		p.A.Run("cucriu", "jobs", "checkpoint", "train")
		failsTwice := func() {
			dir := t.TempDir()
			p.B.UseFailpoint("jobs.restored=run " + testenv.Script(t, "cd "+dir+" && ! mkdir 1 && ! mkdir 2"))
		}
		for i, flags := range [][]string{nil, {"--start", "setsid cucriu run --dir " + j.dir + " --every 0 </dev/null >/dev/null 2>&1 &"}} {
			failsTwice()
			j.Prepare(p.B)
			j.cucriuFails(p.A, 1, append([]string{"migrate", "--job", "train", "--to", "b"}, flags...), "no older one is tried", "stays here")
			j.settled(p.A, p.B)
			if from, want := j.resumedFrom(p.A), fmt.Sprintf("%06d", 2*i+2); from != want {
				t.Errorf("the job has resumed from checkpoint %s, not from the one that moved, %s", from, want)
			}
		}

		p.A.UseFailpoint("job.left=kill")
		j.Prepare(p.B)
		if out, err := p.A.Try("cucriu", "migrate", "--job", "train", "--to", "b"); testenv.ExitStatus(err) != -1 {
			t.Fatalf("the source was not killed: %v: %s", err, out)
		}
		p.A.Setenv("CUCRIU_FAILPOINT", "")
		awaitEnd(t, receives(p.B)...)
		failsTwice()
		p.B.Run("cucriu", "recover", "--take", j.moveAt(p.B).ID)
		j.is(p.B)
		if from := j.resumedFrom(p.B); from != "000005" {
			t.Errorf("the job has resumed from checkpoint %s, not from the one before the last", from)
		}
	})
}

// resumedFrom returns the checkpoint from which the job has resumed last.
func (j *longJob) resumedFrom(on *hosts.Host) (name string) {
	j.t.Helper()
	for line := range strings.Lines(on.Run("cat", j.dir+"/events.jsonl")) {
		var e jobs.Event
		if err := json.Unmarshal([]byte(line), &e); err == nil && e.Event == jobs.EventResumed {
			name = e.Checkpoint
		}
	}
	return name
}

// TestAPersonDecidesAboutALongJob where the other host cannot.
func TestAPersonDecidesAboutALongJob(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		j := startJob(t, p, p.A)
		// The source has decided that the job leaves, and cannot say so any more.
		p.A.UseFailpoint("job.left=kill")
		j.Prepare(p.B)
		if out, err := p.A.Try("cucriu", "migrate", "--job", "train", "--to", "b"); testenv.ExitStatus(err) != -1 {
			t.Fatalf("the source was not killed: %v: %s", err, out)
		}
		p.A.Setenv("CUCRIU_FAILPOINT", "")
		testenv.Eventually(t, testenv.Soon, "its supervisor ends", func() bool { return len(p.A.Find("run", j.dir)) == 0 })
		out := j.cucriuFails(p.B, 125, append(j.args, "--every", "0"), "a decides whether it will run here", "recover --take")
		id := after(out, "recover --take ")
		awaitEnd(t, receives(p.B)...) // it works on the move until it has noticed
		p.B.Run("cucriu", "recover", "--take", id)
		j.is(p.B)
		if out := p.A.Run("cucriu", "recover"); !strings.Contains(out, "train runs at b") {
			t.Errorf("recover at the source: %s", out)
		}
		// The job has left, and the same command says so.
		j.cucriuFails(p.A, 33, j.args, "has moved to b", "recover --take "+id)
		// B is destroyed.
		for _, root := range p.B.Find(j.dir) {
			_ = root.Kill()
		}
		testenv.Eventually(t, testenv.Soon, "the job ends", func() bool { return len(j.roots(p.B)) == 0 })
		p.A.Run("cucriu", "recover", "--take", id)
		j.again(p.A)
		j.is(p.A)
	})
}

// TestALongJobThatIsToMoveOnIsNotForgotten by the host to which it has come: its source, which has not heard
// that, is not advised to run it, too.
func TestALongJobThatIsToMoveOnIsNotForgotten(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		j := startJob(t, p, p.A)
		j.Prepare(p.B)
		p.A.UseFailpoint("migrate.told=hang") // killed there, it might take what it has told to ssh with it
		source := p.A.Command(t.Context(), "cucriu", "migrate", "--job", "train", "--to", "b")
		if err := source.Start(); err != nil {
			t.Fatal(err)
		}
		p.A.Setenv("CUCRIU_FAILPOINT", "")
		testenv.Eventually(t, testenv.Soon, "the job is there", func() bool { return j.listed(p.B, "running") })
		for _, process := range p.A.Find("migrate", "--job") {
			if err := process.Kill(); err != nil {
				t.Error(err)
			}
		}
		if err := source.Wait(); testenv.ExitStatus(err) != -1 {
			t.Fatalf("the source was not killed: %v", err)
		}
		awaitEnd(t, receives(p.B)...)
		p.B.UseFailpoint("job.ahead=error")
		j.fails(p.B, p.A, 1, "job.ahead", "keeps running here")
		p.B.Setenv("CUCRIU_FAILPOINT", "")
		if testenv.Exists(p.B.Path(filepath.Join(j.dir, "move.json"))) {
			t.Error("host b keeps the record of a move that is over, so the test shows nothing")
		}
		if out := p.A.Run("cucriu", "recover"); !strings.Contains(out, "train runs at b") {
			t.Errorf("recover at the source: %s", out)
		}
		j.settled(p.B, p.A)
		j.move(p.B, p.A)
	})
}

// TestALongJobWhoseDestinationIsGone stays, and a person ends the move, so that it can move again.
func TestALongJobWhoseDestinationIsGone(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		j := startJob(t, p, p.A)
		j.Prepare(p.B)
		p.A.UseFailpoint("job.ready=kill")
		if out, err := p.A.Try("cucriu", "migrate", "--job", "train", "--to", "b"); testenv.ExitStatus(err) != -1 {
			t.Fatalf("the source was not killed: %v: %s", err, out)
		}
		p.B.PowerOff()
		p.A.Setenv("CUCRIU_FAILPOINT", "")
		p.A.Setenv("CUCRIU_FAILPOINT_HASTE", "60")
		testenv.Eventually(t, testenv.Soon, "the job is back", func() bool { return j.listed(p.A, "running") })
		id := j.moveAt(p.A).ID
		j.cucriuFails(p.A, 1, []string{"recover"}, "could not be notified", "cucriu recover --drop "+id)
		j.cucriuFails(p.A, 3, []string{"migrate", "--job", "train", "--to", "c"}, "has yet to be notified", "cucriu recover --drop "+id)
		j.cucriuFails(p.A, 1, []string{"recover", "--take", id}, "there is nothing to decide")
		if out := p.A.Run("cucriu", "recover", "--drop", id); !strings.Contains(out, "b was not notified") {
			t.Errorf("the person is told: %s", out)
		}
		j.is(p.A)

		// B was not gone after all: what it holds does not run, and a person ends it.
		p.B.Boot()
		p.A.Setenv("CUCRIU_FAILPOINT_HASTE", "")
		j.cucriuFails(p.B, 125, append(j.args, "--every", "0"), "a decides whether it will run here")
		j.fails(p.A, p.B, 3, "recover --take "+id)
		p.B.Run("cucriu", "recover", "--drop", j.dir)
		j.move(p.A, p.B)
	})
}

// TestALongJobIsRefused where it cannot be moved, and is not touched.
func TestALongJobIsRefused(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		j := startJob(t, p, p.A)
		inB := func(path string) string { return p.B.Path(filepath.Join(j.dir, path)) }
		make := func(path, text string) {
			if err := os.MkdirAll(filepath.Dir(inB(path)), 0o700); err != nil {
				t.Fatal(err)
			}
			testenv.WriteFile(t, inB(path), text)
		}
		j.cucriuFails(p.A, 2, []string{"migrate", "-t", "1", "--to", "b", "--start", "true"}, "only for --job")
		j.cucriuFails(p.A, 2, []string{"migrate", "--job", "train", "--to", "b", "--tcp", "close"}, "not for --job")
		make("notes", "mine")
		j.fails(p.A, p.B, 3, "is not empty, and not the directory of this job")
		if !testenv.Exists(inB("notes")) {
			t.Error("a stranger's file was removed")
		}
		if err := os.RemoveAll(inB(".")); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(inB("."), 0o755); err != nil {
			t.Fatal(err)
		}
		j.fails(p.A, p.B, 3, "chmod 700")
		if err := os.Chmod(inB("."), 0o700); err != nil {
			t.Fatal(err)
		}
		if out := p.A.Run("cucriu", "migrate", "--job", "train", "--to", "b", "--dry-run"); !strings.Contains(out, "can move to b") {
			t.Errorf("a dry run says: %s", out)
		}
		if testenv.Exists(inB("lock")) {
			t.Error("a dry run has touched the destination")
		}
		for _, s := range p.A.Find("run", j.dir) {
			if filepath.Base(s.Args[0]) == "cucriu" && s.Args[1] == "run" {
				if err := s.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		testenv.Eventually(t, testenv.Soon, "the supervisor has ended", func() bool { return j.listed(p.A, "no supervisor") })
		j.fails(p.A, p.B, 3, "runs without a supervisor")
		j.again(p.A)
		j.move(p.A, p.B)
	})
}

// fails moves the job, which fails with a status, and says so.
func (j *longJob) fails(from, to *hosts.Host, status int, says ...string) string {
	j.t.Helper()
	j.Prepare(to)
	return j.cucriuFails(from, status, []string{"migrate", "--job", j.dir, "--to", to.Name}, says...)
}

// cucriuFails runs cucriu, which fails with a status, and says so.
func (j *longJob) cucriuFails(on *hosts.Host, status int, args []string, says ...string) string {
	j.t.Helper()
	cmd := on.Command(j.t.Context(), "cucriu", args...)
	data, _ := cmd.CombinedOutput()
	out := string(data)
	if code := cmd.ProcessState.ExitCode(); code != status {
		j.t.Errorf("cucriu %v: status %d, want %d:\n%s", args, code, status, out)
	}
	for _, text := range says {
		if !strings.Contains(out, text) {
			j.t.Errorf("cucriu %v does not say %q:\n%s", args, text, out)
		}
	}
	j.t.Logf("%s", out)
	return out
}

// again gives the same cucriu run again on a host.
func (j *longJob) again(on *hosts.Host) {
	j.t.Helper()
	log := func() string {
		data, err := os.ReadFile(on.Path(filepath.Join(j.dir, "supervisor.log")))
		if err != nil && !os.IsNotExist(err) {
			j.t.Fatal(err)
		}
		return string(data)
	}
	before := len(log())
	on.Run("sh", append([]string{"-c", `setsid cucriu "$@" </dev/null >/dev/null 2>>"$0" &`, filepath.Join(j.dir, "supervisor.log")}, j.args...)...)
	testenv.Eventually(j.t, testenv.Soon, "the job has a supervisor", func() bool {
		said := log()[before:] // what is listed may be of the supervisor before
		if !strings.Contains(said, "supervised again") && !strings.Contains(said, "resumes from checkpoint") {
			return false
		}
		return j.listed(on, "running")
	})
}

// after returns the word that follows a text.
func after(out, text string) string {
	_, rest, _ := strings.Cut(out, text)
	word, _, _ := strings.Cut(rest, " ")
	return word
}

// TestALongJobThatLacksAFileThereIsNotStopped: what its restore needs is compared before, with a
// checkpoint that fits the job's files here.
func TestALongJobThatLacksAFileThereIsNotStopped(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		const script = `mkdir -p /tmp/here && echo data >/tmp/here/data && chmod 640 /tmp/here/data && cd /tmp/here && exec "$@" 3<data`
		j := startJobUnder(t, p, p.A, []string{"sh", "-c", script, "sh"})
		j.Prepare(p.B)
		before := len(p.A.Run("cat", j.dir+"/events.jsonl"))
		for _, step := range []struct{ there, says string }{
			{"true", "/tmp/here"},
			{"mkdir -p /tmp/here && echo longer >/tmp/here/data && chmod 640 /tmp/here/data", "/tmp/here/data"},
			{"echo data >/tmp/here/data && chmod 600 /tmp/here/data", "had mode 0640 at the checkpoint, but has 0600 now"},
		} {
			p.B.Run("sh", "-c", step.there)
			out := j.fails(p.A, p.B, 3, "the job cannot be resumed here", step.says)
			if strings.Count(out, "the job cannot be resumed here") != 1 || len(out) > 1500 {
				t.Errorf("it is said more than once: %s", out)
			}
		}
		if events := p.A.Run("cat", j.dir+"/events.jsonl")[before:]; strings.Contains(events, "\"moving\"") {
			t.Errorf("the job was stopped: %s", events)
		}
		p.B.Run("chmod", "640", "/tmp/here/data")
		j.move(p.A, p.B)
		for _, h := range p.Hosts() {
			h.Run("sh", "-c", "echo newer than the checkpoint >/tmp/here/data")
		}
		j.move(p.B, p.A)
		if n := strings.Count(p.A.Run("cat", j.dir+"/events.jsonl"), "\"event\":\"checkpoint\""); n != 4 {
			t.Errorf("%d checkpoints were made, not a first and a last one, a last one, and both again", n)
		}
	})
}
