package restore

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// pingPong becomes its further arguments, and has children that talk with each other over TCP. They
// note how far they are in a file.
const pingPong = `
import os, socket, sys
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen()
if os.fork() == 0:
    if os.fork() == 0:
        peer = socket.create_connection(listener.getsockname())
        while True:
            peer.sendall(peer.recv(8))
    peer, _ = listener.accept()
    for tick in range(10**9):
        peer.sendall(b"%8d" % tick)
        if int(peer.recv(8)) != tick: sys.exit(1)
        with open(sys.argv[1] + ".new", "w") as f: f.write(str(tick))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
os.execv(sys.argv[2], sys.argv[2:])
`

// TestConnectionsGoOnWhereCriuIsKilled: criu holds back the packets of connections, and takes that
// back only if it lives.
func TestConnectionsGoOnWhereCriuIsKilled(t *testing.T) {
	testenv.NeedsTCP(t)
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		ticks := filepath.Join(t.TempDir(), "ticks")
		job := host.StartUnder([]string{"/usr/bin/python3", "-c", pingPong, ticks}, 1)
		goOn := func() {
			t.Helper()
			before, _ := os.ReadFile(ticks)
			testenv.Eventually(t, testenv.Soon, "the processes talk", func() bool {
				now, err := os.ReadFile(ticks)
				return err == nil && string(now) != string(before)
			})
		}
		goOn()
		kill := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" = post-dump ] || exit 0; kill -9 "$(echo "$CRTOOLS_IMAGE_DIR" | cut -d/ -f3)"; sleep 1`)
		dump := host.CriuCommandScripts("dump", t.TempDir(), []string{host.HookBin, kill}, "-t", job.Root(), "--tcp-established", "--network-lock", "nftables")
		out, err := dump.CombinedOutput()
		if err == nil {
			t.Fatalf("criu dump was not killed:\n%s", out)
		}
		if dump.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("criu dump ended with %v:\n%s", dump.ProcessState, out)
		}
		job.Runs()
		goOn()
	})
}

// closedConnections becomes its further arguments, with a port on which it listens without
// SO_REUSEADDR and of which the kernel keeps connections that it has closed. Those from the first
// argument on are still open at their other end.
const closedConnections = `
import os, socket, sys
listener = socket.socket(); listener.set_inheritable(True)
listener.bind(("127.0.0.1", 0)); listener.listen()
for n in range(4):
    client = socket.create_connection(listener.getsockname())
    served, _ = listener.accept()
    served.close()
    if n < int(sys.argv[1]): client.close()
    else: os.dup2(client.fileno(), 50 + n)
os.execv(sys.argv[2], sys.argv[2:])
`

// TestPortsWithClosedConnectionsAreBoundAtOnce, although the kernel keeps such connections for a
// minute, which makes bind fail.
func TestPortsWithClosedConnectionsAreBoundAtOnce(t *testing.T) {
	testenv.NeedsTCP(t)
	testenv.Parallel(t)
	for _, test := range []struct {
		name   string
		closed string
		args   []string
		plain  bool // without cucriu's commands
	}{
		{"both ends closed", "4", nil, false},
		{"one end closed", "2", []string{"--tcp-established"}, false},
		{"by criu and its hook", "4", nil, true},
	} {
		t.Run(strings.ReplaceAll(test.name, " ", "-"), func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.StartUnder([]string{"/usr/bin/python3", "-c", closedConnections, test.closed}, 1)
				sockets, err := proc.TCPSockets(job.PID)
				if err != nil {
					t.Fatal(err)
				}
				kept := 0
				for _, s := range sockets {
					if s.State == unix.BPF_TCP_TIME_WAIT || s.State == unix.BPF_TCP_FIN_WAIT2 {
						kept++
					}
				}
				if kept == 0 {
					t.Fatal("the kernel keeps no connection")
				}
				images := testenv.NewImages(t)
				if test.plain {
					host.Restore(host.Dump(job))
				} else {
					testenv.Exits(t, host, 0, append([]string{"dump", "-t", job.Root(), "-D", images}, test.args...)...)
					testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
					testenv.Exits(t, host, 0, "restore", "-D", images)
				}
				job.Runs()
			})
		})
	}
}
