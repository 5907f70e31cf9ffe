package migrate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// appends is a job without CUDA that appends to a log, reads a file, and has a socket in a directory
// of its own. It sees whether its files are what they were.
const appends = `
import os, socket, sys, time
dir = sys.argv[-1]
os.makedirs(dir + "/own", 0o751)
with open(dir + "/text", "w") as f: f.write("text")
text = open(dir + "/text")
log = open(dir + "/log", "a")
s = socket.socket(socket.AF_UNIX); s.bind(dir + "/own/socket"); s.listen()
for tick in range(10**6):
    text.seek(0)
    log.write("%d\n" % tick); log.flush()
    with open(dir + "/log") as f: lines = f.read().split("\n")[:-1]
    bad = text.read() != "text" or lines != [str(n) for n in range(tick + 1)]
    with open(dir + "/status.new", "w") as f: f.write('{"tick":%d,"bad":%d}' % (tick, bad))
    try: os.rename(dir + "/status.new", dir + "/status")
    except FileNotFoundError: pass # it was written on the other host, and nobody had it open
    time.sleep(0.02)
`

// copied is a job on host a, of whose files host b has none.
type copied struct {
	*hosts.Pair
	t    *testing.T
	work *hosts.Job
}

func newCopied(t *testing.T) *copied {
	t.Helper()
	c := &copied{t: t, Pair: hosts.New(t, hosts.Options{})}
	c.work = c.A.StartProgram("python3", "-c", appends)
	c.work.WaitTicks(c.A, 3)
	c.B.Run("mkdir", "-p", c.work.Dir)
	return c
}

// migrate tries to move the job. What goes wrong at a point does so once.
func (c *copied) migrate(failpoint string, flags ...string) (string, error) {
	c.t.Helper()
	marks := c.t.TempDir()
	for _, h := range c.Hosts() {
		h.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
		h.UseFailpoint(failpoint)
	}
	out, err := c.A.Try("cucriu", append([]string{"migrate", "-t", c.work.Root(), "--to", "b", "--copy-files", "missing"}, flags...)...)
	if point, _, found := strings.Cut(failpoint, "="); found && !testenv.Exists(filepath.Join(marks, point)) {
		c.t.Errorf("nobody has come to %s: %v: %s", point, err, out)
	}
	return out, err
}

// staysHere fails the test unless the job goes on at host a alone.
func (c *copied) staysHere(what string) {
	c.t.Helper()
	c.t.Logf("after %s", what)
	c.work.WaitTicks(c.A, 3)
	onlyOn(c.t, c.work, c.A)
}

// madeThere lists what there is of the job's files at host b.
func (c *copied) madeThere() string {
	c.t.Helper()
	return strings.Join(strings.Fields(c.B.Run("ls", "-A", c.work.Dir)), " ")
}

// TestFilesAreMadeWholeOrNotAtAll: whatever goes wrong, what was made for the job goes again, and the
// next attempt finds nothing in its way.
func TestFilesAreMadeWholeOrNotAtAll(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		c := newCopied(t)
		for _, failpoint := range []string{
			"receive.making=error", "receive.put=error", "receive.making=kill", "receive.put=kill",
			"receive.restored=error", "receive.promised=error", "migrate.ready=error", "receive.restored=kill", "migrate.ready=kill",
		} {
			out, err := c.migrate(failpoint)
			if err == nil {
				t.Fatalf("%s: the job was moved: %s", failpoint, out)
			}
			point, action, _ := strings.Cut(failpoint, "=")
			before := point == "receive.making" || point == "receive.put" // before criu restores
			if action == "kill" && !before {
				testenv.Eventually(t, testenv.Soon, "the migration has come to its end", func() bool {
					for _, h := range c.Hosts() {
						_, _ = h.Try("cucriu", "recover")
					}
					return len(left(c.A))+len(left(c.B)) == 0
				})
			}
			c.staysHere(failpoint)
			testenv.Eventually(t, testenv.Soon, "nothing is left at host b after "+failpoint, func() bool {
				made := c.madeThere()
				return made == "" || !before && made == "own" // the directory holds criu's socket
			})
		}
		if out, err := c.migrate(""); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		c.work.WaitTicks(c.B, 3)
		testenv.Eventually(t, testenv.Soon, "nothing else is left", func() bool { return len(left(c.A))+len(left(c.B)) == 0 })
		if out := c.B.Run("stat", "-c", "%a", c.work.Dir+"/own"); strings.TrimSpace(out) != "751" {
			t.Errorf("the directory that was made has mode %s", out)
		}
	})
}

// TestWhoIsKilledLeavesNothingInTheWay: neither side says anything any more. What was made goes with
// cucriu recover or the next attempt.
func TestWhoIsKilledLeavesNothingInTheWay(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		c := newCopied(t)
		killed := func() {
			marks := t.TempDir()
			stop := testenv.WaitsForGo(t, marks)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = c.migrate("receive.put=run " + stop)
			}()
			testenv.Eventually(t, testenv.Soon, "the files are made", func() bool { return testenv.Exists(marks + "/reached") })
			kill(t, "migrate", migrates(c.A)...) // first: it would finish when the other one has gone
			kill(t, "receive", receives(c.B)...)
			<-ended
			testenv.WriteFile(t, marks+"/go", "")
			c.staysHere("the kill")
			if made := c.madeThere(); !strings.Contains(made, "log") || !strings.Contains(made, "own") {
				t.Fatalf("host b has %q", made)
			}
		}
		killed()
		c.B.Run("cucriu", "recover")
		if made := c.madeThere(); made != "" {
			t.Errorf("left at host b: %s", made)
		}
		killed()
		if out, err := c.migrate(""); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		c.work.WaitTicks(c.B, 3)
	})
}

// TestRootIsNotLedElsewhere by a symbolic link, neither before the migration nor in its middle.
func TestRootIsNotLedElsewhere(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		c := newCopied(t)
		lead := fmt.Sprintf("mkdir -p /tmp/elsewhere && rmdir %[1]s && ln -s /tmp/elsewhere %[1]s", c.work.Dir)
		c.B.Run("sh", "-c", lead)
		out, err := c.migrate("")
		if err == nil || !strings.Contains(out, "is reached through a symbolic link") {
			t.Errorf("%v: %s", err, out)
		}
		c.staysHere("the refusal")
		c.B.Run("sh", "-c", "rm "+c.work.Dir+" && mkdir "+c.work.Dir)

		script := testenv.Script(t, lead)
		out, err = c.migrate("receive.asked=run " + script)
		if err == nil || !strings.Contains(out, "symbolic link") {
			t.Errorf("%v: %s", err, out)
		}
		c.staysHere("the refusal")
		if made := c.B.Run("ls", "-A", "/tmp/elsewhere"); made != "" {
			t.Errorf("made elsewhere: %s", made)
		}
	})
}

// hides writes into a file over which something can be mounted.
const hides = `
import os, sys, time
os.mkdir(sys.argv[-1] + "/below")
hidden = open(sys.argv[-1] + "/below/hidden", "w")
for tick in range(10**6):
    with open(sys.argv[-1] + "/status.new", "w") as f: f.write('{"tick":%d,"bad":0}' % tick)
    try: os.rename(sys.argv[-1] + "/status.new", sys.argv[-1] + "/status")
    except FileNotFoundError: pass # it was written on the other host, and nobody had it open
    time.sleep(0.02)
`

// TestFilesThatCannotMoveAreRefusedBeforehand, by their names.
func TestFilesThatCannotMoveAreRefusedBeforehand(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		w := p.A.StartProgram("python3", "-c", hides)
		w.WaitTicks(p.A, 3)
		p.A.Run("mount", "-t", "tmpfs", "tmpfs", filepath.Join(w.Dir, "below"))
		p.B.Run("mkdir", "-p", filepath.Join(w.Dir, "below"))
		cmd := p.A.Command(t.Context(), "cucriu", "migrate", "-t", w.Root(), "--to", "b", "--copy-files", "missing")
		out, err := cmd.CombinedOutput()
		if err == nil || cmd.ProcessState.ExitCode() != 3 || !strings.Contains(string(out), "below/hidden") || !strings.Contains(string(out), "cannot be reached by this path") {
			t.Errorf("%v: %s", err, out)
		}
		w.WaitTicks(p.A, 3)
	})
}

// TestNoFilesMoveUnlessAskedFor: the job's are on a file server.
func TestNoFilesMoveUnlessAskedFor(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{SharedDir: true})
		p.B.Setenv("CUCRIU_CONFIG", p.B.Config("version: 1\nforce: [file-differs]\n"))
		w := p.A.Start(1, "--mib", "4")
		w.Is(p.A)
		if out, err := p.A.Try("cucriu", "migrate", "-t", w.Root(), "--to", "b"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		w.Is(p.B)
		if kept, _ := filepath.Glob(w.Dir + "/*.cucriu-*"); len(kept) > 0 {
			t.Errorf("%v", kept)
		}
		if entries, err := os.ReadDir(w.Dir); err != nil || len(entries) == 0 {
			t.Errorf("%v, %v", entries, err)
		}
	})
}
