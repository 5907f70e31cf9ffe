package migrate

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// answers is a job without CUDA that talks to itself over a socket with a name.
const answers = `
import os, socket, sys, time
dir, path = sys.argv[-1], sys.argv[1]
os.chdir(dir)
if path == "absolute": path = dir + "/socket"
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
    try: os.rename(dir + "/status.new", dir + "/status")
    except FileNotFoundError: pass # it was written on the other host, and nobody had it open
    if bad: break
    time.sleep(0.02)
time.sleep(1000)
`

// TestASocketThatBothHostsSeeStays: criu would take its path from a job that may have to go back.
func TestASocketThatBothHostsSeeStays(t *testing.T) {
	for bound, name := range map[string]string{"absolute": "/socket", "relative": "relative"} {
		t.Run(bound, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				c := &copied{t: t, Pair: hosts.New(t, hosts.Options{SharedDir: true})}
				c.work = c.A.StartProgram("python3", "-c", answers, bound)
				c.work.WaitTicks(c.A, 3)
				out, err := c.A.Try("cucriu", "migrate", "-t", c.work.Root(), "--to", c.B.Name, "--force", "file-differs")
				var exit *exec.ExitError
				if !errors.As(err, &exit) || !strings.Contains(out, "has a UNIX socket at "+c.work.Dir) || !strings.Contains(out, name+", which both hosts see") {
					t.Fatalf("not refused: %v: %s", err, out)
				}
				if refused := exit.ExitCode() == 3; refused != (bound == "absolute") { // a relative name is known from the image
					t.Errorf("exit status %d: %s", exit.ExitCode(), out)
				}
				if copies := c.work.Copies(); len(copies) != 1 || copies[0].Host != c.A {
					t.Fatalf("copies: %v", copies)
				}
				c.work.WaitTicks(c.A, 3)
			})
		})
	}
}
