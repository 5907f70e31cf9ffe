package run

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs"
	"cucriu/internal/testenv"
)

// newServerWorld makes a world for a server that loads until the file go is there.
func newServerWorld(t *testing.T) (w *world, port string) {
	t.Helper()
	w, port = emptyWorld(t), testenv.FreePort(t)
	testenv.WriteFile(t, filepath.Join(w.work, "server.py"), `
import http.server, os, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if os.path.exists("open") else 503)
        self.end_headers()
        self.wfile.write(b"hello")
while not os.path.exists("go"): time.sleep(0.05)
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
open("ready", "w")
print("loaded; serving now", flush=True)
server.serve_forever()
`)
	w.command = []string{"sh", "-c", `cd "$0" && exec python3 -u server.py "$1"`, w.work, port}
	return w, port
}

// exits runs a command of cucriu, and fails the test unless it ends with this status and has said this.
func (w *world) exits(status int, says string, args ...string) {
	w.t.Helper()
	out, err := w.host.Cucriu(args...)
	code, exit := 0, new(exec.ExitError)
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	if code != status || !strings.Contains(out, says) {
		w.t.Errorf("%v: %v, want exit status %d and %q\n%s", args, err, status, says, out)
	}
}

// when asks for a checkpoint once a condition is met.
func (w *world) when(status int, says, condition string, more ...string) {
	w.t.Helper()
	w.exits(status, says, append([]string{"jobs", "checkpoint", w.dir, "--when", condition}, more...)...)
}

// TestACheckpointWaitsUntilItsConditionIsMet, and says if the time is over before, or the job has ended.
func TestACheckpointWaitsUntilItsConditionIsMet(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, port := newServerWorld(t)
		r := w.run("--every", "never")
		r.says("D: sh")
		conditions := []string{
			"http://localhost:" + port + "/x", "tcp:" + port, "file:" + w.work + "/ready", "log:serving now",
		}
		for _, c := range conditions {
			w.when(1, "was not met within --timeout 500ms", c, "--timeout", "500ms")
		}
		w.when(2, "want http", "udp:80")
		if all := w.checkpoints(); len(all) != 0 {
			t.Errorf("there are checkpoints %v", all)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.when(0, "checkpoint 000001", conditions[3])
		}()
		time.Sleep(time.Second)
		testenv.WriteFile(t, filepath.Join(w.work, "go"), "")
		<-done
		w.when(1, "was not met within", conditions[0], "--timeout", "1s") // 503
		testenv.WriteFile(t, filepath.Join(w.work, "open"), "")
		for i, c := range conditions {
			w.when(0, "checkpoint 00000"+string(rune('2'+i)), c)
		}
		if strings.Contains(r.said(), "connection") {
			t.Errorf("a connection of a look was dumped")
		}
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		r = w.again()
		r.says("D resumes from checkpoint")
		w.when(1, "has no such line yet", conditions[3], "--timeout", "2s") // which the run before has written
		w.when(0, "checkpoint 000007", conditions[0])
		go func() {
			time.Sleep(time.Second)
			r.signal(unix.SIGTERM)
		}()
		w.when(5, "before log:never was met", "log:never")
		r.ends(requeue)
	})
}

// TestAConditionIsLookedAtAsTheJobSeesIt, which has a network and directories of its own.
func TestAConditionIsLookedAtAsTheJobSeesIt(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, port := newServerWorld(t)
		r := w.run("--every", "never")
		r.says("D: sh")
		w.exits(0, "checkpoint 000001", "jobs", "checkpoint", w.dir)
		job := w.from()
		next := job.startFrom(w)
		next.says("from image")
		conditions := []string{"http://127.0.0.1:" + port, "tcp:" + port, "file:" + w.work + "/ready"}
		for _, c := range conditions {
			job.when(1, "was not met within", c, "--timeout", "500ms")
		}
		testenv.WriteFile(t, filepath.Join(w.work, "go"), "")
		testenv.WriteFile(t, filepath.Join(w.work, "open"), "")
		w.when(0, "checkpoint 000002", conditions[2])
		for _, c := range conditions { // that of the image is ready
			job.when(1, "was not met within", c, "--timeout", "500ms")
		}
		testenv.WriteFile(t, filepath.Join(job.work, "go"), "")
		testenv.WriteFile(t, filepath.Join(job.work, "open"), "")
		for i, c := range conditions {
			job.when(0, "checkpoint 00000"+string(rune('1'+i)), c)
		}
		for _, r := range []*run{r, next} {
			r.signal(unix.SIGTERM)
			r.ends(requeue)
		}
	})
}

// TestTheFirstCheckpointIsMadeWhenTheJobIsReady, and the others on schedule.
func TestTheFirstCheckpointIsMadeWhenTheJobIsReady(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, port := newServerWorld(t)
		r := w.run("--checkpoint-when", "tcp:"+port)
		r.says("the first checkpoint is waiting for tcp:" + port + ": connection refused")
		time.Sleep(3 * time.Second)
		r.kill()
		r = w.again()
		r.says("is supervised again")
		time.Sleep(2 * time.Second)
		if all := w.checkpoints(); len(all) != 0 {
			t.Errorf("there are checkpoints %v", all)
		}
		testenv.WriteFile(t, filepath.Join(w.work, "go"), "")
		r.verified(2)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		before := w.newestNumber()
		r = w.again()
		r.says("D resumes from checkpoint")
		r.verified(1)
		if w.newestNumber() <= before {
			t.Errorf("checkpoint %d is the newest", before)
		}
		r.signal(unix.SIGTERM)
		r.ends(requeue)
	})
}

// TestAFirstCheckpointThatFailsIsMadeLater although there is no schedule.
func TestAFirstCheckpointThatFailsIsMadeLater(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, _ := newServerWorld(t)
		host := w.host.For(t)
		host.UseFailpoint("jobs.staged=error")
		host.Setenv("CUCRIU_FAILPOINT_MARKS", t.TempDir())
		r := w.runAs(host, "--every", "never", "--checkpoint-when", "file:"+filepath.Join(w.work, "ready"))
		testenv.WriteFile(t, filepath.Join(w.work, "go"), "")
		r.says("no checkpoint: ")
		r.verified(1)
		if e, _ := w.last(jobs.EventCheckpoint); e.Checkpoint != "000001" {
			t.Errorf("there is %+v", e)
		}
		r.signal(unix.SIGTERM)
		r.ends(requeue)
	})
}

// TestWhatAFirstCheckpointWaitsForIsSaidAgain when the reason is another one by then.
func TestWhatAFirstCheckpointWaitsForIsSaidAgain(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, port := newServerWorld(t)
		r := w.run("--checkpoint-when", "http://127.0.0.1:"+port+"/")
		r.says("connection refused")
		testenv.WriteFile(t, filepath.Join(w.work, "go"), "")
		r.says("the answer has status 503")
		testenv.WriteFile(t, filepath.Join(w.work, "open"), "")
		r.verified(1)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
	})
}
