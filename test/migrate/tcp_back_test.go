package migrate

import (
	"fmt"
	"os"
	"testing"

	"github.com/google/nftables"

	"cucriu/internal/testenv"
	"cucriu/test/hosts"
)

// pingPong is a job whose processes talk with each other over TCP, all the time.
const pingPong = `
import os, socket, sys
own = sys.argv[-1]
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen()
if os.fork() == 0:
    peer = socket.create_connection(listener.getsockname())
    while True:
        peer.sendall(peer.recv(8))
peer, _ = listener.accept()
for tick in range(10**9):
    peer.sendall(b"%8d" % tick)
    bad = int(peer.recv(8)) != tick
    with open(own + "/status.new", "w") as f: f.write('{"tick":%d,"bad":%d}' % (tick, bad))
    os.rename(own + "/status.new", own + "/status")
`

// TestConnectionsInsideOfAJobComeBackWithIt: criu leaves a stopped job's connections locked.
func TestConnectionsInsideOfAJobComeBackWithIt(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		w := newWorld(t, "cuda")
		w.start = func() *hosts.Work { return w.A.StartProgram("python3", "-c", pingPong) }
		w.fresh()
		m := w.begin(t, "migrate.sent", "")
		if !m.reached() {
			t.Fatal("the migration ended before")
		}
		w.breakCriu(t)
		m.goOn()
		if status := m.status(); status != 1 {
			t.Fatalf("cucriu migrate ended with %d", status)
		}
		w.work.Ticks(w.from, 100)
		_ = os.Remove(w.broken())
		m = w.begin(t, "none", "kill")
		if status := m.status(); status != 0 {
			t.Fatalf("cucriu migrate ended with %d", status)
		}
		w.work.Ticks(w.to, 100)
		for _, h := range w.Hosts() {
			if left := tables(t, h); left != "" {
				t.Errorf("host %s goes on holding back connections: %s", h.Name, left)
			}
		}
		w.watch.Stop()
	})
}

// tables returns the names of criu's tables of nftables on a host.
func tables(t *testing.T, h *hosts.Host) (names string) {
	t.Helper()
	in, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", h.Find("sshd")[0].Outer))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	c, err := nftables.New(nftables.WithNetNSFd(int(in.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range all {
		names += table.Name + " "
	}
	return names
}
