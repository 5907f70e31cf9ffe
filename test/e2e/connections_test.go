package e2e

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

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
	needsTCP(t)
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
