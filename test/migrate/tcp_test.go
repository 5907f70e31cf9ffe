package migrate

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// onTCP is what the jobs of these tests have in common.
const onTCP = `
import json, os, socket, sys, time
def exactly(s, n):
    data = b""
    while len(data) < n:
        more = s.recv(n - len(data))
        if not more: raise EOFError
        data += more
    return data
def block(n): return n.to_bytes(8, "little") * 512
tick, bad, connections = 0, 0, 0
def report():
    global tick
    tick += 1
    with open(sys.argv[-1] + "/status.new", "w") as f: json.dump({"tick": tick, "bad": bad, "connections": connections}, f)
    try: os.rename(sys.argv[-1] + "/status.new", sys.argv[-1] + "/status")
    except FileNotFoundError: pass # it was written on the other host, and nobody had it open
    time.sleep(0.01)
`

// echoed talks with its own child all the time, and compares what comes back. Some of it is on its
// way when it is dumped. It talks without waiting, which must stay so.
const echoed = onTCP + `
listener = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    s = socket.create_connection(listener.getsockname())
    while True: s.sendall(exactly(s, 4096))
s, _ = listener.accept()
for n in range(8): s.sendall(block(n))
for n in range(10**6):
    bad += exactly(s, 4096) != block(n) or s.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 0
    s.sendall(block(n + 8))
    report()
    if os.path.exists(sys.argv[-1] + "/check"):
        with open(sys.argv[-1] + "/checked", "w") as f: json.dump({"bad": bad, "words": 1}, f)
        os.remove(sys.argv[-1] + "/check")
`

// calls talks with a server, and calls it again when the connection has ended.
const calls = onTCP + `
while True:
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), source_address=(sys.argv[3], 0))
    connections += 1
    try:
        for n in range(10**6):
            s.sendall(block(n))
            bad += exactly(s, 4096) != block(n)
            report()
    except (OSError, EOFError):
        s.close()
`

// closed listens without SO_REUSEADDR on a port of which the kernel keeps closed connections.
const closed = onTCP + `
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen()
s = socket.create_connection(listener.getsockname())
served, _ = listener.accept()
served.close(); s.close()
while True: report()
`

// TestAJobComesBackToPortsWithClosedConnections that it has left there less than a minute ago.
func TestAJobComesBackToPortsWithClosedConnections(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		w := p.A.StartProgram("python3", "-c", closed)
		w.WaitTicks(p.A, 3)
		w.Prepare(p.B)
		migrate(t, w, p.A, p.B)
		w.WaitTicks(p.B, 3)
		migrate(t, w, p.B, p.A)
		w.WaitTicks(p.A, 3)
	})
}

// withEachNetworkLock runs a test with either of criu's ways to hold packets back, whatever this machine
// has: by an iptables that speaks nftables, as Debian's does, and by nftables where iptables does not work.
func withEachNetworkLock(t *testing.T, test func(t *testing.T, p *hosts.Pair)) {
	testenv.Parallel(t)
	for _, lock := range []string{"iptables", "nftables"} {
		t.Run(lock, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				dir := os.Getenv("CUCRIU_TEST_IPTABLES")
				if lock == "nftables" {
					dir = t.TempDir()
					testenv.WriteFile(t, filepath.Join(dir, "iptables"), "#!/bin/sh\nexit 4\n")
					if err := os.Chmod(filepath.Join(dir, "iptables"), 0o700); err != nil {
						t.Fatal(err)
					}
				} else if dir == "" {
					t.Fatal("CUCRIU_TEST_IPTABLES is not set: run make test")
				}
				if err := os.Setenv("PATH", dir+":"+os.Getenv("PATH")); err != nil { // the hosts take it over
					t.Fatal(err)
				}
				p := hosts.New(t, hosts.Options{})
				if modules := filepath.Join(dir, "xtables"); testenv.Exists(modules) {
					p.A.Setenv("XTABLES_LIBDIR", modules)
					p.B.Setenv("XTABLES_LIBDIR", modules)
				}
				if _, err := p.B.Try("iptables", "-S"); (err == nil) != (lock == "iptables") {
					t.Fatalf("iptables -S on a host: %v", err)
				}
				test(t, p)
			})
		})
	}
}

func TestConnectionsInsideOfAJobGoOn(t *testing.T) {
	withEachNetworkLock(t, func(t *testing.T, p *hosts.Pair) {
		w := &world{t: t, Pair: p, from: p.A, to: p.B}
		w.work = p.A.StartProgram("python3", "-c", echoed)
		w.work.WaitTicks(p.A, 3)
		for point, do := range map[string]func(){
			"migrate.sent": func() { signal(t, unix.SIGTERM, migrates(p.A)) },
			"dump.dumped": func() {
				killAny(slices.Concat(watchers(p.A), migrates(p.A), receives(p.B), clients(p.A), servers(p.B)))
			},
		} {
			m := w.begin(t, point, "")
			if !m.reached() {
				t.Fatalf("the migration ended before %s", point)
			}
			do()
			m.goOn()
			status := m.status()
			if at := w.end(t); status == 0 || at != p.A {
				t.Fatalf("%s: exit status %d, the job is on %v: %s", point, status, at, m.out.String())
			}
			w.work.WaitTicks(p.A, 30)
			withoutRules(t, p)
		}
		move(t, w.work, p.A, p.B)
		w.work.WaitTicks(p.B, 30)
		move(t, w.work, p.B, p.A, "--precopy")
		w.work.WaitTicks(p.A, 30)
		withoutRules(t, p)
	})
}

// withoutRules fails the test if packets are still dropped.
func withoutRules(t *testing.T, p *hosts.Pair) {
	t.Helper()
	for _, h := range p.Hosts() {
		if tables := h.Tables(); len(tables) > 0 {
			t.Errorf("left on host %s: tables %v of nftables", h.Name, tables)
		}
	}
}

// server sends back what it gets.
type server struct {
	net.Listener
	calls, ended atomic.Int32
}

func serve(t *testing.T, on *hosts.Host) *server {
	t.Helper()
	s := new(server)
	s.Listener = listen(t, on, func(conn net.Conn) {
		s.calls.Add(1)
		_, _ = io.Copy(conn, conn)
		conn.Close()
		s.ended.Add(1)
	})
	return s
}

// listen has a host listen, and serves each connection beside the test.
func listen(t *testing.T, on *hosts.Host, serve func(net.Conn)) net.Listener {
	t.Helper()
	l, err := on.Listen("tcp4", net.JoinHostPort(on.Addr.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return l
}

func (s *server) caller(on *hosts.Host, from netip.Addr) *hosts.Job {
	host, port, _ := net.SplitHostPort(s.Addr().String())
	return on.StartProgram("python3", "-c", calls, host, port, from.String())
}

// connections returns how many connections a job has made.
func connections(t *testing.T, w *hosts.Job, on *hosts.Host) (n int) {
	t.Helper()
	var said struct{ Connections int }
	data, err := os.ReadFile(on.Path(filepath.Join(w.Dir, "status")))
	if err == nil {
		err = json.Unmarshal(data, &said)
	}
	if err != nil {
		t.Fatal(err)
	}
	return said.Connections
}

func TestConnectionsWithOtherProgramsAreRefusedOrClosed(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		s := serve(t, p.B)
		w := s.caller(p.A, netip.IPv4Unspecified())
		w.WaitTicks(p.A, 3)
		w.Prepare(p.B)

		out, err := p.A.Try("cucriu", "migrate", "-t", w.Root(), "--to", "b")
		for _, want := range []string{"tcp-connection", fmt.Sprintf("from %v:", p.A.Addr), fmt.Sprintf("to %v, outside the job", s.Addr()), "--tcp close", "--tcp keep"} {
			if !strings.Contains(out, want) {
				t.Errorf("it does not say %q", want)
			}
		}
		if status := testenv.ExitStatus(err); status != 3 {
			t.Errorf("exit status %d: %s", status, out)
		}
		w.WaitTicks(p.A, 3)
		if n := s.calls.Load(); n != 1 {
			t.Errorf("there were %d connections", n)
		}

		p.A.UseFailpoint("migrate.sent=error")
		if out, err := p.A.Try("cucriu", "migrate", "-t", w.Root(), "--to", "b", "--copy-files", "changed", "--tcp", "close", "--precopy"); err == nil {
			t.Errorf("want it given up: %s", out)
		}
		p.A.UseFailpoint("")
		w.WaitTicks(p.A, 30)
		if n := connections(t, w, p.A); n != 1 {
			t.Errorf("the job goes on at its source, and has made %d connections", n)
		}

		migrate(t, w, p.A, p.B, "--tcp", "close")
		w.WaitTicks(p.B, 3)
		testenv.Eventually(t, testenv.Soon, "the server has noticed", func() bool { return s.ended.Load() == 1 })
		if n, m := connections(t, w, p.B), s.calls.Load(); n != 2 || m != 2 {
			t.Errorf("the job has made %d connections, and the server had %d", n, m)
		}
		withoutRules(t, p)
	})
}

// watchRules has the iptables of a host look whether the process that marks/root names is there when
// a rule is removed, and note it in marks. It returns false if there is no iptables.
func watchRules(t *testing.T, on *hosts.Host, marks string) bool {
	t.Helper()
	real, err := exec.LookPath("iptables")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	watching := filepath.Join(dir, "iptables")
	testenv.WriteFile(t, watching, fmt.Sprintf(`#!/bin/sh
case " $* " in *" -D "*) if [ -n "$RULES" ] && [ -e "$RULES/root" ]; then
	if grep -qs '^State:[[:space:]]*[^XZ[:space:]]' /proc/$(cat $RULES/root)/status;
	then tr '\0' ' ' </proc/$PPID/cmdline >>$RULES/early;
		grep '^State' /proc/$(cat $RULES/root)/status >>$RULES/early;
	else touch $RULES/late; fi
fi;; esac
exec %s "$@"
`, real))
	if err := os.Chmod(watching, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Setenv("PATH", dir+":"+os.Getenv("PATH")); err != nil { // the hosts take it over
		t.Fatal(err)
	}
	on.Setenv("RULES", marks)
	on.UseFailpoint("")
	_, err = on.Try("iptables", "-S")
	return err == nil
}

// TestConnectionsAreKept if the address of the job moves with it; and if it comes back. The other end
// is at the destination, or on the host that the job leaves.
func TestConnectionsAreKept(t *testing.T) {
	withEachNetworkLock(t, func(t *testing.T, p *hosts.Pair) {
		moves := netip.MustParseAddr("10.77.0.9")
		p.A.AddAddress(moves)
		marks := t.TempDir()
		asked := func(what string) bool { return testenv.Exists(filepath.Join(marks, what)) }
		removes := watchRules(t, p.A, marks)
		mover := testenv.Script(t, fmt.Sprintf("touch %s/$1; while ! [ -e %[1]s/done-$1 ]; do sleep 0.05; done", marks))
		w := &world{t: t, Pair: p, from: p.A, to: p.B, flags: []string{"--tcp", "keep", "--move-address", mover}}
		for _, s := range []*server{serve(t, p.B), serve(t, p.A)} {
			w.from, w.to = p.A, p.B
			w.work = s.caller(p.A, moves)
			w.work.WaitTicks(p.A, 3)

			testenv.WriteFile(t, filepath.Join(marks, "done-there"), "")
			testenv.WriteFile(t, filepath.Join(marks, "done-back"), "")
			m := w.begin(t, "migrate.sent", "error")
			if status := m.status(); status != 1 || !asked("there") || !asked("back") {
				t.Errorf("exit status %d, asked to move the address: %v, and back: %v", status, asked("there"), asked("back"))
			}
			w.work.WaitTicks(p.A, 30)
			for _, name := range []string{"there", "back", "done-there"} {
				_ = os.Remove(filepath.Join(marks, name))
			}

			m = w.begin(t, "none", "kill")
			testenv.Eventually(t, testenv.Soon, "the address is to be moved", func() bool { return asked("there") })
			p.A.RemoveAddress(moves)
			p.B.AddAddress(moves)
			testenv.WriteFile(t, filepath.Join(marks, "root"), w.work.Root())
			testenv.WriteFile(t, filepath.Join(marks, "done-there"), "")
			if status := m.status(); status != 0 || asked("back") {
				t.Fatalf("exit status %d", status)
			}
			w.work.WaitTicks(p.B, 30)
			if n, m := connections(t, w.work, p.B), s.ended.Load(); n != 1 || m != 0 {
				t.Errorf("the job has made %d connections, and %d have ended", n, m)
			}
			withoutRules(t, p)
			if asked("early") || asked("late") != removes {
				early, _ := os.ReadFile(filepath.Join(marks, "early"))
				t.Errorf("rules were removed while the job was there: %v (%s), and after that: %v", asked("early"), early, asked("late"))
			}
			_, _ = os.Remove(filepath.Join(marks, "root")), os.Remove(filepath.Join(marks, "late"))
			killAny(w.work.All(p.B))
			w.flags = append(w.flags, "--precopy")
			_ = os.Remove(filepath.Join(marks, "there"))
			p.B.RemoveAddress(moves)
			p.A.AddAddress(moves)
		}
	})
}

// TestTheAddressIsAskedBackByWhoRecovers: cucriu migrate is killed while the address moves.
func TestTheAddressIsAskedBackByWhoRecovers(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		marks := t.TempDir()
		asked := func(what string) bool { return testenv.Exists(filepath.Join(marks, what)) }
		w := newWorld(t, "cuda")
		mover := testenv.Script(t, fmt.Sprintf("touch %s/$1; [ $1 = back ] && exit; while :; do sleep 0.01; done", marks))
		w.flags = []string{"--tcp", "keep", "--move-address", mover}
		m := w.begin(t, "none", "kill")
		testenv.Eventually(t, testenv.Soon, "the address is to be moved", func() bool { return asked("there") })
		kill(t, "migrate", migrates(w.from)...)
		_ = m.status()
		if at := w.end(t); at != w.from || !asked("back") {
			t.Errorf("the job is on %v; its address was asked back: %v", at, asked("back"))
		}
		// The one that was to move it was killed with its parent.
		testenv.Eventually(t, testenv.Soon, "the address does not move any more", func() bool { return len(w.from.Find(mover)) == 0 })
		w.is(w.from)
		w.watch.Stop()
	})
}

// hears gets what a server sends, and calls it again when the connection has ended.
const hears = onTCP + `
while True:
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), source_address=(sys.argv[3], 0))
    connections += 1
    try:
        for n in range(10**6):
            bad += exactly(s, 4096) != block(n)
            report()
    except (OSError, EOFError):
        s.close()
`

// TestNobodyAnswersForAJobThatIsOnItsWay: its address is at the destination before its sockets are, and
// the other end sends what was not acknowledged again. Nor does a copy that the destination has restored, and
// which is ended.
func TestNobodyAnswersForAJobThatIsOnItsWay(t *testing.T) {
	withEachNetworkLock(t, func(t *testing.T, p *hosts.Pair) {
		moves := netip.MustParseAddr("10.77.0.9")
		marks := t.TempDir()
		mover := testenv.Script(t, fmt.Sprintf("touch %s/$1; while ! [ -e %[1]s/done-$1 ]; do sleep 0.05; done; rm %[1]s/done-$1", marks))
		for _, on := range p.Hosts() {
			var s *talker
			w := &world{t: t, Pair: p, from: p.A, to: p.B, flags: []string{"--tcp", "keep", "--move-address", mover}}
			starts := func() {
				p.A.AddAddress(moves)
				s = talk(t, on)
				host, port, _ := net.SplitHostPort(s.Addr().String())
				w.work = p.A.StartProgram("python3", "-c", hears, host, port, moves.String())
				w.work.WaitTicks(p.A, 3)
			}
			ends := func() {
				killAny(w.work.All(p.B))
				p.B.RemoveAddress(moves)
			}
			starts()
			moved := func(where string, from, to *hosts.Host) {
				testenv.Eventually(t, testenv.Soon, "the address is to be moved "+where, func() bool { return testenv.Exists(filepath.Join(marks, where)) })
				if where == "there" {
					from.RemoveAddress(moves)
					to.AddAddress(moves)
				}
				looked := s.looked.Load()
				testenv.Eventually(t, testenv.Soon, "it is known how often the server has sent again", func() bool { return s.ended.Load() > 0 || s.looked.Load() > looked+1 })
				before := s.again.Load()
				testenv.Eventually(t, testenv.Soon, "the server sends again", func() bool { return s.ended.Load() > 0 || s.again.Load() > before })
				if where == "back" {
					from.RemoveAddress(moves)
					to.AddAddress(moves)
				}
				_ = os.Remove(filepath.Join(marks, where))
				testenv.WriteFile(t, filepath.Join(marks, "done-"+where), "")
			}
			goesOn := func(at *hosts.Host) {
				w.work.WaitTicks(at, 30)
				if n, ended := connections(t, w.work, at), s.ended.Load(); n != 1 || ended != 0 {
					t.Fatalf("server on %s: the job has made %d connections, and %d have ended", on.Name, n, ended)
				}
				withoutRules(t, p)
			}
			for _, point := range []string{"receive.blocked", "migrate.blocked"} {
				testenv.WriteFile(t, filepath.Join(marks, "done-back"), "")
				if status, at := w.begin(t, point, "kill").status(), w.end(t); status == 0 || at != p.A {
					t.Fatalf("%s: exit status %d, the job is on %v", point, status, at)
				}
				goesOn(p.A)
				_, _ = os.Remove(filepath.Join(marks, "done-back")), os.Remove(filepath.Join(marks, "back"))
			}
			for point, fault := range map[string]string{"migrate.ready": "error", "receive.restored": "kill"} {
				m := w.begin(t, point, fault)
				moved("there", p.A, p.B)
				moved("back", p.B, p.A)
				if status, at := m.status(), w.end(t); status == 0 || at != p.A {
					t.Fatalf("%s: exit status %d, the job is on %v", point, status, at)
				}
				goesOn(p.A)
			}
			m := w.begin(t, "none", "kill")
			moved("there", p.A, p.B)
			if status := m.status(); status != 0 {
				t.Fatalf("exit status %d", status)
			}
			goesOn(p.B)
			ends()

			starts()
			m = w.begin(t, "restore.decided", "kill") // the source asks again, or recover does
			moved("there", p.A, p.B)
			_ = m.status()
			if at := w.end(t); at != p.B {
				t.Fatalf("the job is on %v", at)
			}
			goesOn(p.B)
			ends()
		}
	})
}

// talker sends blocks by itself.
type talker struct {
	net.Listener
	ended, again atomic.Int32 // again is how often it has sent something a second time
	looked       atomic.Int32 // how often again was looked up
}

func talk(t *testing.T, on *hosts.Host) *talker {
	t.Helper()
	s := new(talker)
	s.Listener = listen(t, on, s.serve)
	return s
}

func (s *talker) serve(conn net.Conn) {
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer s.ended.Add(1)
		defer conn.Close()
		for n := range uint64(1e6) {
			block := bytes.Repeat(binary.LittleEndian.AppendUint64(nil, n), 512)
			if _, err := conn.Write(block); err != nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	for err == nil {
		select {
		case <-over:
			return
		case <-time.After(5 * time.Millisecond):
		}
		err = raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err == nil {
				s.again.Store(int32(info.Total_retrans) + int32(info.Probes))
				s.looked.Add(1)
			}
		})
	}
}
