package migrate

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// answers is a job without CUDA that talks to itself over a socket with a name.
const answers = `
import os, socket, sys, time
dir = sys.argv[-1]
path = dir + "/socket"
listener = socket.socket(socket.AF_UNIX); listener.bind(path); listener.listen(); listener.settimeout(5)
for tick in range(10**6):
    bad = 0
    try:
        near = socket.socket(socket.AF_UNIX); near.connect(path)
        far, _ = listener.accept()
        near.send(b"word"); bad = far.recv(4) != b"word"
        near.close(); far.close()
    except OSError as error:
        print(tick, error, flush=True); bad = 1
    with open(dir + "/status.new", "w") as f: f.write('{"tick":%d,"bad":%d}' % (tick, bad))
    os.rename(dir + "/status.new", dir + "/status")
    if bad: break
    time.sleep(0.02)
time.sleep(1000)
`

// TestASocketThatBothHostsSeeBelongsToTheJobThatGoesOn, whoever fails or is killed at whatever point.
func TestASocketThatBothHostsSeeBelongsToTheJobThatGoesOn(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		c := &copied{t: t, Pair: hosts.New(t, hosts.Options{SharedDir: true})}
		c.work = c.A.StartProgram("python3", "-c", answers)
		c.work.WaitTicks(c.A, 3)
		from, to := c.A, c.B
		move := func(failpoint string) {
			marks := t.TempDir()
			for _, h := range c.Hosts() {
				h.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
				h.UseFailpoint(failpoint)
			}
			out, err := from.Try("cucriu", "migrate", "-t", c.work.Root(), "--to", to.Name, "--force", "file-differs")
			if point, _, found := strings.Cut(failpoint, "="); found && !testenv.Exists(filepath.Join(marks, point)) {
				t.Errorf("nobody has come to %s: %v: %s", point, err, out)
			}
			for _, h := range c.Hosts() {
				h.Setenv("CUCRIU_FAILPOINT", "")
			}
			testenv.Eventually(t, testenv.Soon, failpoint+": the migration has come to its end", func() bool {
				for _, h := range c.Hosts() {
					_, _ = h.Try("cucriu", "recover")
				}
				return len(left(c.A))+len(left(c.B)) == 0
			})
			copies := c.work.Copies()
			if len(copies) != 1 {
				t.Fatalf("%s: copies: %v\n%s", failpoint, copies, out)
			}
			if copies[0].Host != from {
				from, to = to, from
			}
			t.Logf("%s: the job is at host %s", failpoint, from.Name)
			c.work.WaitTicks(from, 3)
			entries, err := os.ReadDir(c.work.Dir)
			if err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.Contains(e.Name(), "cucriu") }) {
				t.Errorf("%s: left over: %v %v", failpoint, entries, err)
			}
		}
		for _, failpoint := range []string{
			"dump.kept=kill", "migrate.asked=error", "receive.asked=kill", "restore.pre-resume=kill", "receive.restored=kill", "migrate.ready=error",
		} {
			move(failpoint)
		}
		if from != c.A {
			t.Errorf("the job has moved before that was decided")
		}
		for _, failpoint := range []string{"dump.decided=kill", "receive.heard=kill", "migrate.close=kill", ""} {
			move(failpoint)
		}
	})
}
