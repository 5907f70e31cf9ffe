package run

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// from makes a world for a job that is started from the newest checkpoint of this one, on the same host.
func (w *world) from() *world {
	w.t.Helper()
	job := worldOn(w.t, w.host)
	job.work = filepath.Join(job.dir, "private", "0") // the copy of what the job of the image has at w.work
	job.cuda = strings.Replace(w.cuda, w.work, job.work, 1)
	return job
}

// startFrom starts the job of a world that [world.from] has made of an image.
func (w *world) startFrom(image *world, flags ...string) *run {
	w.t.Helper()
	flags = append([]string{"--image", image.dir, "--private", image.work, "--every", "0"}, flags...)
	return w.start(w.host.CucriuCommand(append([]string{"run", "--dir", w.dir}, flags...)...), flags)
}

// TestOneImageStartsManyJobs beside the one that the image was made of. Each has pids, files, checkpoints and a
// network of its own.
func TestOneImageStartsManyJobs(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		original := w.run(once...)
		w.checks()
		original.verified(1)
		original.says("a trial restore without the GPUs")
		image := filepath.Join(w.dir, "checkpoints", w.newest())
		before := content(t, image)
		named := t.TempDir() // nothing in it is open
		var jobs []*world
		var runs []*run
		for range 2 {
			job := w.from()
			jobs, runs = append(jobs, job), append(runs, job.startFrom(w, "--private", named))
		}
		for i, job := range jobs {
			runs[i].says("from image")
			if strings.Contains(runs[i].said(), "newer") {
				t.Errorf("it tells of changes to its own fresh copies")
			}
			job.ticks(3)
			job.checks()
		}
		w.checks()
		if after := content(t, image); !maps.Equal(before, after) {
			t.Errorf("the image has changed: it had %d files, and has %d", len(before), len(after))
		}
		for i, job := range jobs {
			runs[i].signal(unix.SIGTERM)
			runs[i].ends(requeue)
			runs[i] = job.again()
			runs[i].resumed("000001")
			job.checks()
		}
		w.checks()
		next := w.from() // of a job that was started from an image itself
		last := next.startFrom(&world{t: t, dir: jobs[0].dir, work: w.work})
		last.says("from image " + jobs[0].dir)
		last.says(", " + named + ", ")
		next.ticks(3)
		next.checks()
		if from, of := next.report().Tick, jobs[0].report().Tick; from < 3 || of < 3 {
			t.Errorf("ticks %d and %d", from, of)
		}
		if out, err := w.host.Cucriu("jobs", "show", next.dir); err != nil || !strings.Contains(out, jobs[0].dir) {
			t.Errorf("%v\n%s", err, out)
		}
		last.signal(unix.SIGTERM)
		last.ends(requeue)
		if out, err := w.host.Cucriu("jobs", "show", next.dir); err != nil || strings.Contains(out, "file-differs") {
			t.Errorf("%v\n%s", err, out)
		}
		copied := filepath.Join(t.TempDir(), "copy")
		must(t, os.CopyFS(copied, os.DirFS(filepath.Join(next.dir, "checkpoints", "000001"))))
		for _, args := range [][]string{{"restore", "-D", copied}, {"run", "--dir", copied + ".D", "--image", copied}} {
			if out, err := w.host.Cucriu(args...); err == nil || !strings.Contains(out, "has files of its own") {
				t.Errorf("%v: %v\n%s", args, err, out)
			}
		}
		for i, job := range jobs {
			job.stop(i + 3)
			runs[i].ends(i + 3)
		}
		w.stop(0)
		original.ends(0)
	})
}

// content reads a directory, with the names in those below it.
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || strings.HasPrefix(entry.Name(), "started-") { // a mark of the store's
			return err
		}
		data, err := os.ReadFile(path)
		files[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestAJobFromAnImageIsReachedByItsPublishedPort, as often as the image is started, beside the job that has the port on
// the host. It still is after a preemption.
func TestAJobFromAnImageIsReachedByItsPublishedPort(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		port := testenv.FreePort(t)
		server := filepath.Join(w.work, "server.py")
		testenv.WriteFile(t, server, `
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    seen = 0
    def do_GET(self):
        Handler.seen += 1
        body = f"{Handler.seen} {open('name').read()}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
`)
		testenv.WriteFile(t, filepath.Join(w.work, "name"), "original")
		w.command = []string{"sh", "-c", `cd "$0" && exec python3 server.py "$1"`, w.work, port}
		original := w.run("--every", "0")
		gets(t, port, "1 original")
		if out, err := w.host.Cucriu("jobs", "checkpoint", w.dir); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		var jobs []*world
		var runs []*run
		var at []string
		for i := range 2 {
			job, own := w.from(), testenv.FreePort(t)
			jobs, at = append(jobs, job), append(at, own)
			refused := job.startFrom(w, "--publish", "127.0.0.1:"+port+":"+port)
			refused.ends(125)
			refused.says("in use, or published twice: publish another port")
			runs = append(runs, job.startFrom(w, "--publish", "127.0.0.1:"+own+":"+port))
			runs[i].says("published: 127.0.0.1:" + own)
			testenv.WriteFile(t, filepath.Join(job.work, "name"), strconv.Itoa(i))
		}
		for i := range jobs {
			gets(t, at[i], fmt.Sprintf("2 %d", i))
			gets(t, at[i], fmt.Sprintf("3 %d", i))
		}
		gets(t, port, "2 original")
		for i, job := range jobs {
			runs[i].signal(unix.SIGTERM)
			runs[i].ends(requeue)
			runs[i] = job.again()
			gets(t, at[i], fmt.Sprintf("4 %d", i))
		}
		runs[0].kill()
		runs[0] = jobs[0].again()
		runs[0].says("is supervised again")
		gets(t, at[0], "5 0")
		for _, r := range append(runs, original) {
			r.signal(unix.SIGTERM)
			r.ends(requeue)
		}
		w.noProcesses()
	})
}

// gets asks a server until it answers, and fails the test if that is not what it should be.
func gets(t *testing.T, port, want string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var got []byte
	testenv.Eventually(t, testenv.Soon, "the server at port "+port+" answers", func() bool {
		answer, err := client.Get("http://127.0.0.1:" + port)
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		got, err = io.ReadAll(answer.Body)
		return err == nil
	})
	if string(got) != want {
		t.Errorf("the server at port %s says %q, want %q", port, got, want)
	}
}

// TestAnImageThatJobsWereStartedFromStays: neither pruned nor removed while such a job is there. One that is gone or
// another one all the same starts no job again.
func TestAnImageThatJobsWereStartedFromStays(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		original := w.run(once...)
		w.ticks(3)
		original.verified(1)
		job := w.from()
		r := job.startFrom(w)
		r.says("from image")
		for range 3 {
			if out, err := w.host.Cucriu("jobs", "checkpoint", w.dir); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		original.signal(unix.SIGTERM)
		original.ends(requeue)
		for _, args := range [][]string{{"jobs", "verify", w.dir}, {"jobs", "prune", w.dir, "--keep", "1"}} {
			if out, err := w.host.Cucriu(args...); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		if all := w.checkpoints(); len(all) != 2 || all[0] != "000001" {
			t.Fatalf("checkpoints %v are left", all)
		}
		if out, err := w.host.Cucriu("jobs", "show", w.dir, "000001"); err != nil || !strings.Contains(out, "started 1 job") {
			t.Errorf("%v\n%s", err, out)
		}
		image := filepath.Join(w.dir, "checkpoints", "000001")
		if out, err := w.host.Cucriu("jobs", "list"); err != nil || !strings.Contains(out, "from image "+image) {
			t.Errorf("%v\n%s", err, out)
		}
		if out, err := w.host.Cucriu("inspect", image); err != nil || !strings.Contains(out, "started from it: "+job.dir) {
			t.Errorf("%v\n%s", err, out)
		}
		out, err := w.host.Cucriu("jobs", "rm", w.dir, "--yes")
		if err == nil || !strings.Contains(out, job.dir) {
			t.Errorf("%v\n%s", err, out)
		}
		r.kill()
		_ = unix.Kill(job.place().Init.PID, unix.SIGKILL)
		must(t, os.Rename(image, image+".away"))
		job.again().ends(3, "image "+image+": it is gone")
		must(t, os.Rename(filepath.Join(w.dir, "checkpoints", w.newest()), image))
		job.again().ends(3, "it is not the image that this job was started from")
		if out, err := w.host.Cucriu("jobs", "rm", job.dir, "--yes"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if out, err := w.host.Cucriu("jobs", "rm", w.dir, "--yes"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	})
}

// TestNoKillDuringAStartFromAnImageLosesAnything: whoever is killed at whatever step, the same command starts the job,
// once, and the image and the job that it was made of are as they were.
func TestNoKillDuringAStartFromAnImageLosesAnything(t *testing.T) {
	testenv.Parallel(t)
	for i, step := range append([]string{"image.noted", "image.copied", "image.laid-out", "image.copying"}, resumeSteps...) {
		t.Run(step, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newMixedWorld(t)
				original := w.run(once...)
				w.checks()
				original.verified(1)
				original.says("a trial restore without the GPUs")
				image := filepath.Join(w.dir, "checkpoints", "000001")
				before := content(t, image)
				for _, k := range victimsOf(i) {
					t.Logf("%s: %s", step, k)
					w.surviveKilledStart(step, k)
				}
				w.checks()
				if after := content(t, image); !reflect.DeepEqual(without(before, "trial.json"), without(after, "trial.json")) {
					t.Errorf("the image had %d files, and has %d", len(before), len(after))
				}
				w.stop(0)
				original.ends(0)
			})
		})
	}
}

// without leaves out the files of a name.
func without(files map[string]string, name string) map[string]string {
	maps.DeleteFunc(files, func(path, _ string) bool { return filepath.Base(path) == name })
	return files
}

// surviveKilledStart starts a job from the image of this one, kills somebody at a step, and starts it again.
func (w *world) surviveKilledStart(step string, k who, more ...string) {
	w.t.Helper()
	others := testenv.NotEnding(testenv.Running("cudawork"))
	job := w.from()
	s := job.stopAt(step)
	flags := append([]string{"--image", w.dir, "--private", w.work, "--every", "0"}, more...)
	r := job.start(s.host.CucriuCommand(append([]string{"run", "--dir", job.dir}, flags...)...), flags)
	s.await(r)
	if !job.kills(k) {
		w.t.Logf("there is no %s at this step", k)
	}
	s.goOn()
	from := -1 // what the copy of its files has: a job that was killed right after its start does not tick on
	testenv.Eventually(w.t, 3*testenv.Soon, "the job runs, or its supervisor ends", func() bool {
		select {
		case <-r.done:
			return true
		default:
		}
		tick := job.report().Tick
		if from < 0 && strings.Contains(r.said(), "D: from image") {
			from = tick
		}
		return from >= 0 && tick > from
	})
	select {
	case <-r.done:
		r = job.startFrom(w, more...)
	default:
	}
	r.awaits("the job runs", func() bool {
		return strings.Contains(r.said(), "D: from image "+w.dir) || strings.Contains(r.said(), "is supervised again")
	})
	job.ticks(3)
	job.checks()
	testenv.Eventually(w.t, testenv.Soon, "there is one job more", func() bool {
		return len(testenv.NotEnding(testenv.Running("cudawork"))) == len(others)+1
	})
	job.stop(0)
	r.ends(0)
}

// TestNoLinkLeadsTheCopyOfADirectoryElsewhere: the job's user may put one where the image was writing, before the
// directory is copied and before the copy is shown.
func TestNoLinkLeadsTheCopyOfADirectoryElsewhere(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		original := w.run(once...)
		w.ticks(3)
		original.verified(1)
		original.signal(unix.SIGTERM)
		original.ends(requeue)
		elsewhere := t.TempDir()
		testenv.WriteFile(t, filepath.Join(elsewhere, "secret"), "of root")
		exchange := fmt.Sprintf("mv %[1]s %[1]s.away && ln -s %[2]s %[1]s", w.work, elsewhere)
		for _, step := range []string{"image.noted", "image.laid-out"} {
			job := w.from()
			host := w.host.For(t)
			host.UseFailpoint(step + "=run " + testenv.Script(t, exchange))
			out, err := host.Cucriu("run", "--dir", job.dir, "--image", w.dir, "--private", w.work, "--every", "0")
			if err == nil || !strings.Contains(out, "too many levels of symbolic links") {
				t.Errorf("%s: %v\n%s", step, err, out)
			}
			if testenv.Exists(filepath.Join(job.work, "secret")) {
				t.Errorf("%s: the copy has what the link leads to", step)
			}
			must(t, errors.Join(os.Remove(w.work), os.Rename(w.work+".away", w.work)))
		}
		job := w.from()
		r := job.startFrom(w)
		job.ticks(3)
		job.stop(0)
		r.ends(0)
	})
}
