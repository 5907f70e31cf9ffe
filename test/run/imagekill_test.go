package run

import (
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// goneServer answers each request with how many it had of those for /count. For each it uses a UNIX socket in a
// directory that it has made.
const goneServer = `
import http.server, os, socket, sys
address, port, gone = sys.argv[1:]
os.mkdir(gone)
listener = socket.socket(socket.AF_UNIX)
listener.bind(gone + "/listener")
listener.listen()
class Handler(http.server.BaseHTTPRequestHandler):
    seen = 0
    def log_message(self, *_): pass
    def do_GET(self):
        client = socket.socket(socket.AF_UNIX)
        client.connect(gone + "/listener")
        listener.accept()[0].close()
        Handler.seen += self.path == "/count"
        body = str(Handler.seen).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.HTTPServer((address, int(port)), Handler)
print("serves", flush=True)
server.serve_forever()
`

// TestNoKillOfAStartLeavesAnything: whoever is killed while the job gets its addresses, its published port, and the
// directory of its sockets, which is gone, the same command starts the job, once; when that has ended nothing is
// mounted or runs, and the image is as it was.
func TestNoKillOfAStartLeavesAnything(t *testing.T) {
	testenv.Parallel(t)
	steps := []string{"image.addresses", "sandbox.addresses", "jobs.publishing", "image.gone", "image.gone itself"}
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w, port := emptyWorld(t), testenv.FreePort(t)
				gone := filepath.Join(t.TempDir(), "gone")
				w.command = []string{"python3", "-c", goneServer, ownAddress(t, false), port, gone}
				original := w.run("--every", "0")
				original.awaits("it serves", func() bool { return strings.Contains(w.output(), "serves") })
				w.checkpoint()
				original.signal(unix.SIGTERM)
				original.ends(requeue)
				image := filepath.Join(w.dir, "checkpoints", "000002")
				before := content(t, image)
				step, itself := strings.CutSuffix(step, " itself")
				for _, k := range []who{supervisorKilled, initKilled, insideKilled, allKilled} {
					t.Log(k)
					must(t, os.RemoveAll(gone)) // a start makes it, to mount on
					job, at := w.from(), testenv.FreePort(t)
					flags := []string{"--every", "0", "--image", w.dir, "--publish", "127.0.0.1:" + at + ":" + port}
					if itself {
						flags = append(flags, "--private", gone)
					}
					args := append([]string{"run", "--dir", job.dir}, flags...)
					s := job.stopAt(step)
					r := job.start(s.host.CucriuCommand(args...), flags)
					s.await(r)
					if !job.kills(k) {
						t.Logf("there is no %s at this step", k)
					}
					s.goOn()
					answers := func() bool {
						answer, err := http.Get("http://127.0.0.1:" + at)
						return err == nil && answer.Body.Close() == nil
					}
					if r.endsBefore("it answers", answers) {
						r = job.start(w.host.CucriuCommand(args...), flags)
					}
					gets(t, at+"/count", "1")
					gets(t, at+"/count", "2")
					if all := testenv.NotEnding(testenv.Running("python3")); len(all) != 1 {
						t.Errorf("processes %v", all)
					}
					r.signal(unix.SIGTERM)
					r.ends(requeue)
					w.noProcesses()
					if after := content(t, image); !maps.Equal(before, after) {
						t.Errorf("the image had %d files, and has %d", len(before), len(after))
					}
				}
			})
		})
	}
}

// endsBefore waits until a supervisor has ended, or a condition is met, and reports whether it has ended.
func (r *run) endsBefore(what string, condition func() bool) (ended bool) {
	r.w.t.Helper()
	testenv.Eventually(r.w.t, testenv.Soon, "the supervisor ends, or "+what, func() bool {
		select {
		case <-r.done:
			ended = true
		default:
		}
		return ended || condition()
	})
	return ended
}

// TestNoKillWhileAStartWaitsForMemory that a dump has freed, and the job which is dumped may need, harms either: the
// same command starts one job once that memory is free.
func TestNoKillWhileAStartWaitsForMemory(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := worldOn(t, testenv.NewHost(t, 1, "--mib-per-gpu", "128"))
		w.command = []string{
			testenv.Artefact(t, "make workload", "build", "workload", "cudawork"), "--dir", w.work, "--mib", "60",
		}
		w.cuda = w.work
		original, _ := w.imageOf()
		original.signal(unix.SIGTERM)
		original.ends(requeue)
		image := filepath.Join(w.dir, "checkpoints", "000002")
		before := content(t, image)
		for _, k := range []who{supervisorKilled, insideKilled, initKilled, allKilled} {
			t.Log(k)
			other := w.host.Start(1, "--mib", "60")
			s := w.stopAt("dump.post-dump")
			dumped := make(chan testenv.CriuRun, 1)
			go func() { dumped <- s.host.TryDump(other, filepath.Join(t.TempDir(), "images")) }()
			testenv.Eventually(t, testenv.Soon, "it is being dumped", func() bool {
				return testenv.Exists(filepath.Join(s.dir, "reached"))
			})
			job := w.from() // whose victims are none of the dump's processes
			r := job.startFrom(w)
			r.says("waiting: ")
			if !job.kills(k) {
				t.Errorf("there is no %s", k)
			}
			s.goOn()
			if run := <-dumped; run.Err != nil {
				t.Fatalf("dump: %v\n%s", run.Err, run.Log)
			}
			if r.endsBefore("the job is started", func() bool { return strings.Contains(r.said(), ": from image ") }) {
				r = job.startFrom(w)
				r.says("from image")
			}
			job.checks()
			if all := testenv.NotEnding(testenv.Running("cudawork")); len(all) != 1 {
				t.Errorf("processes %v", all)
			}
			job.stop(0)
			r.ends(0)
			w.noProcesses()
			if after := content(t, image); !maps.Equal(before, after) {
				t.Errorf("the image had %d files, and has %d", len(before), len(after))
			}
		}
	})
}

// TestNoKillBetweenTwoRunsOfAJobFromAnImage loses it or makes two of it: it is started from the image again, or from
// its own checkpoint as soon as there is one.
func TestNoKillBetweenTwoRunsOfAJobFromAnImage(t *testing.T) {
	testenv.Parallel(t)
	for _, step := range []string{"jobs.restart", "jobs.renewed"} {
		t.Run(step, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newMixedWorld(t)
				original, _ := w.imageOf()
				original.signal(unix.SIGTERM)
				original.ends(requeue)
				image := filepath.Join(w.dir, "checkpoints", "000002")
				before := content(t, image)
				job := w.from()
				r := job.startFrom(w, "--restart", "always")
				for n, from := range []string{"from image", "from image", "resumes from checkpoint 000001"} {
					r.says(from)
					job.checks()
					if n == 1 {
						job.checkpoint()
					}
					r.kill()
					s := job.stopAt(step)
					r = job.start(s.host.CucriuCommand("run", "--dir", job.dir), nil)
					r.says("is supervised again")
					job.fails(r, 1)
					s.await(r)
					r.kill()
					s.goOn()
					w.noProcesses()
					r = job.again()
				}
				r.says("resumes from checkpoint 000001")
				job.checks()
				if all := testenv.NotEnding(testenv.Running("cudawork")); len(all) != 1 {
					t.Errorf("processes %v", all)
				}
				r.signal(unix.SIGTERM)
				r.ends(requeue)
				w.noProcesses()
				if after := content(t, image); !maps.Equal(before, after) {
					t.Errorf("the image had %d files, and has %d", len(before), len(after))
				}
			})
		})
	}
}

// TestOfTwoStartsInOneNetworkTheSecondIsRefused if both need the same port, also if nobody has it when they begin: the
// clients of the two would be divided.
func TestOfTwoStartsInOneNetworkTheSecondIsRefused(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		original, ports := w.serves(",alone", "127.0.0.1")
		original.signal(unix.SIGTERM)
		original.ends(requeue)
		job, other := w.from(), w.from()
		s := job.stopAt("image.laid-out")
		flags := []string{"--image", w.dir, "--net", "host", "--every", "0"}
		r := job.start(s.host.CucriuCommand(append([]string{"run", "--dir", job.dir}, flags...)...), flags)
		s.await(r)
		second := other.startFrom(w, "--net", "host")
		second.says("waiting for another job that is being started in the same network")
		s.goOn()
		r.says("from image")
		second.ends(3, "tcp-address: ", ports[0])
		gets(t, ports[0], "1")
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		second = other.startFrom(w, "--net", "host")
		second.says("from image")
		gets(t, ports[0], "1")
		job.again().ends(3, "tcp-address: ", ports[0])
		second.signal(unix.SIGTERM)
		second.ends(requeue)
		w.noProcesses()
	})
}
