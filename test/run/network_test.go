package run

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// networkServer serves at each of its arguments, ADDRESS,PORT. At /self a server answers what it has said to itself, by
// a connection that it has had since it was started; with ADDRESS,PORT,alone it has none.
const networkServer = `
import http.client, http.server, socket, sys, threading
class Server(http.server.ThreadingHTTPServer):
    seen = 0
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        self.server.seen += 1
        text = f"{self.server.seen}".encode()
        if self.path == "/self":
            self.server.own.request("GET", "/")
            text = b"self " + self.server.own.getresponse().read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
for at in sys.argv[1:]:
    address, port, *alone = at.split(",")
    Server.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = Server((address, int(port)), Handler)
    threading.Thread(target=server.serve_forever).start()
    if not alone:
        server.own = http.client.HTTPConnection(address, int(port))
        server.own.connect()
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind((address if "." in address else "127.0.0.1", 0))
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    out.connect(("203.0.113.1", 53)) # elsewhere; nothing is sent
except OSError:
    pass # no way leads there
print("serves", flush=True)
threading.Event().wait()
`

// ownAddress is one of this host, of IPv4 or IPv6, that is no loopback address.
func ownAddress(t *testing.T, six bool) string {
	t.Helper()
	all, err := proc.OwnAddresses()
	must(t, err)
	i := slices.IndexFunc(all, func(a netip.Addr) bool { return a.IsGlobalUnicast() && a.Is6() == six })
	if i < 0 {
		t.Skip("this host has only loopback addresses")
	}
	return all[i].String()
}

// serves starts a job that serves at these addresses, and makes a checkpoint of it. more is appended to each address.
func (w *world) serves(more string, addresses ...string) (r *run, ports []string) {
	w.t.Helper()
	testenv.WriteFile(w.t, filepath.Join(w.work, "server.py"), networkServer)
	w.command = []string{"python3", filepath.Join(w.work, "server.py")}
	for _, address := range addresses {
		port := testenv.FreePort(w.t)
		ports = append(ports, port)
		w.command = append(w.command, address+","+port+more)
	}
	r = w.run("--every", "0")
	testenv.Eventually(w.t, testenv.Soon, "the job serves", func() bool {
		out, _ := os.ReadFile(filepath.Join(w.dir, "output.log"))
		return strings.Contains(string(out), "serves")
	})
	if out, err := w.host.Cucriu("jobs", "checkpoint", w.dir); err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
	return r, ports
}

// TestAJobFromAnImageHasTheAddressesOfItsSockets in a network of its own: whatever a server is bound to, it is reached
// by its published port and by itself, twice at the same time, and after it was resumed.
func TestAJobFromAnImageHasTheAddressesOfItsSockets(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		own, own6 := ownAddress(t, false), ownAddress(t, true)
		original, ports := w.serves("", "0.0.0.0", "127.0.0.1", "::", "::1", own6, own)
		original.says("a trial restore without the GPUs has shown")
		var jobs []*world
		var runs []*run
		var at [][]string
		for i := range 2 {
			var flags, published []string
			for _, port := range ports {
				published = append(published, testenv.FreePort(t))
				flags = append(flags, "--publish", "127.0.0.1:"+published[len(published)-1]+":"+port)
			}
			jobs, at = append(jobs, w.from()), append(at, published)
			runs = append(runs, jobs[i].startFrom(w, flags...))
			runs[i].says(fmt.Sprintf("the job's network has the addresses that it had: [%s %s]", own6, own))
		}
		asks := func(seen int) {
			t.Helper()
			for i := range jobs {
				for _, port := range at[i] {
					gets(t, port, fmt.Sprint(seen))
					gets(t, port+"/self", fmt.Sprintf("self %d", seen+2))
				}
			}
		}
		asks(1)
		for i, job := range jobs {
			runs[i].signal(unix.SIGTERM)
			runs[i].ends(requeue)
			runs[i] = job.again()
		}
		asks(4)
		next := w.from() // of a job that was started from an image itself
		port := testenv.FreePort(t)
		last := next.startFrom(&world{t: t, dir: jobs[0].dir, work: w.work}, "--publish", port+":"+ports[len(ports)-1])
		gets(t, port, "4")
		for _, r := range append(runs, original, last) {
			r.signal(unix.SIGTERM)
			r.ends(requeue)
		}
		w.noProcesses()
	})
}

// TestACheckpointWhileAPublishedPortIsUsed leaves the connection as it is. It is closed when the job is resumed.
func TestACheckpointWhileAPublishedPortIsUsed(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		original, ports := w.serves("", "0.0.0.0")
		job, at := w.from(), testenv.FreePort(t)
		r := job.startFrom(w, "--publish", "127.0.0.1:"+at+":"+ports[0])
		r.says("published")
		conn, err := net.Dial("tcp", "127.0.0.1:"+at)
		must(t, err)
		defer conn.Close()
		for i := range 2 {
			fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			answer := make([]byte, 4096)
			n, err := conn.Read(answer)
			for err == nil && !strings.HasSuffix(string(answer[:n]), fmt.Sprintf("\r\n\r\n%d", i+1)) {
				var more int
				more, err = conn.Read(answer[n:])
				n += more
			}
			if err != nil {
				t.Fatalf("%v: %s", err, answer[:n])
			}
			if out, err := w.host.Cucriu("jobs", "checkpoint", job.dir); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("the connection is open although the job has ended")
		}
		r = job.again()
		gets(t, at, "3")
		for _, r := range []*run{r, original} {
			r.signal(unix.SIGTERM)
			r.ends(requeue)
		}
		w.noProcesses()
	})
}

// output runs a program, and returns what it says.
func output(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

// TestAJobFromAnImageRunsInAPreparedNetwork: it is checked before anything is touched, and stays as it is.
func TestAJobFromAnImageRunsInAPreparedNetwork(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		own := ownAddress(t, false)
		original, ports := w.serves("", "0.0.0.0", "::1", own)
		name := "test" + testenv.FreePort(t)
		path := filepath.Join("/run/netns", name)
		job, at := w.from(), testenv.FreePort(t)
		flags := []string{"--net", name, "--publish", "127.0.0.1:" + at + ":" + ports[2]}
		refused := func(why ...string) string {
			t.Helper()
			r := job.startFrom(w, flags...)
			r.ends(3, why...)
			if testenv.Exists(job.dir) {
				t.Errorf("%s has been made", job.dir)
			}
			return r.said()
		}
		refused("there is no network namespace "+path, "ip netns add")
		output(t, "ip", "netns", "add", name)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", name).Run() })
		lacks := ", an address that this network does not have"
		for _, address := range []string{"127.0.0.1", own} {
			said := refused("the job has sockets at " + address + lacks)
			_, remedy, _ := strings.Cut(said, "the job has sockets at "+address+lacks+": ")
			remedy, _, _ = strings.Cut(remedy, "\n")
			_, remedy, _ = strings.Cut(remedy, ": ")
			output(t, append([]string{"sh", "-c"}, remedy)...)
		}
		before := output(t, "ip", "-n", name, "address") + output(t, "ip", "-n", name, "route")
		r := job.startFrom(w, flags...)
		gets(t, at, "1")
		gets(t, at+"/self", "self 3")
		other := w.from()
		other.startFrom(w, "--net", path).ends(3, "which process ", "(python3) uses", "has, too")
		if out, err := w.host.Cucriu("jobs", "checkpoint", job.dir); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		gets(t, at, "4")
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		job.again().says("resumes from checkpoint 000002")
		gets(t, at, "5")
		job.runs[len(job.runs)-1].kill()
		r = job.again()
		r.says("is supervised again")
		gets(t, at, "6")
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		if after := output(t, "ip", "-n", name, "address") + output(t, "ip", "-n", name, "route"); after != before {
			t.Errorf("the network was\n%s\nand is\n%s", before, after)
		}
		copied := filepath.Join(t.TempDir(), "copy")
		must(t, os.CopyFS(copied, os.DirFS(filepath.Join(job.dir, "checkpoints", job.newest()))))
		if out, err := w.host.Cucriu("check", "-D", copied); err != nil || strings.Contains(out, "tcp-address") {
			t.Errorf("%v\n%s", err, out)
		}
		holder := exec.Command("ip", "netns", "exec", name, "sleep", "1000")
		must(t, holder.Start())
		defer func() { _ = holder.Process.Kill(); _ = holder.Wait() }()
		prepared, err := os.Stat(path)
		must(t, err)
		held := fmt.Sprintf("/proc/%d/ns/net", holder.Process.Pid)
		testenv.Eventually(t, testenv.Soon, "the network has another process", func() bool {
			of, err := os.Stat(held)
			return err == nil && os.SameFile(of, prepared)
		})
		output(t, "ip", "netns", "delete", name)
		job.again().ends(3, "there is no network namespace "+path)
		notOne := filepath.Join(t.TempDir(), "file")
		testenv.WriteFile(t, notOne, "")
		job.again("--net", notOne).ends(3, notOne+" is not a network namespace")
		must(t, os.Chown(notOne, 1000, 1000))
		job.again("--net", notOne).ends(3, "can be replaced by users other than root")
		job.again("--net", "/proc/self/ns/net").ends(3, "is the network of the host")
		r = job.again("--net", held)
		gets(t, at, "7")
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		r = job.again("--net", "own")
		gets(t, at, "8")
		for _, r := range []*run{r, original} {
			r.signal(unix.SIGTERM)
			r.ends(requeue)
		}
	})
}

// TestAJobFromAnImageRunsInTheNetworkOfTheHost if its ports are free there, and no connection would be there twice.
func TestAJobFromAnImageRunsInTheNetworkOfTheHost(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		connected := emptyWorld(t)
		first, _ := connected.serves("", "0.0.0.0")
		first.signal(unix.SIGTERM)
		first.ends(requeue)
		connected.from().startFrom(connected, "--net", "host").ends(3,
			"the image has both ends of the TCP connection from 127.0.0.1:", "--net own")

		w := emptyWorld(t)
		original, ports := w.serves(",alone", "0.0.0.0", "::1")
		job := w.from()
		refused := job.startFrom(w, "--net", "host")
		refused.ends(3, "TCP 0.0.0.0:"+ports[0]+", which process ", "(python3) uses", "TCP [::1]:"+ports[1],
			"--net own", "--publish")
		if strings.Count(refused.said(), "UDP") != 1 || testenv.Exists(job.dir) {
			t.Error(refused.said())
		}
		original.signal(unix.SIGTERM)
		original.ends(requeue)
		for _, args := range [][]string{
			{"--image", w.dir, "--net", "host", "--publish", "1:2"},
			{"--net", "host", "--", "true"},
		} {
			out, err := w.host.Cucriu(append([]string{"run", "--dir", job.dir}, args...)...)
			if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(out, "--net") {
				t.Errorf("%v: %v\n%s", args, err, out)
			}
		}
		r := job.startFrom(w, "--net", "host")
		gets(t, ports[0], "1")
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		taken, err := net.Listen("tcp", ":"+ports[0])
		must(t, err)
		job.again().ends(3, "TCP 0.0.0.0:"+ports[0]+", which process ")
		must(t, taken.Close())
		r = job.again()
		gets(t, ports[0], "2")
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		at := testenv.FreePort(t)
		r = job.again("--net", "own", "--publish", at+":"+ports[0])
		gets(t, at, "3")
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		job.remembers("--every=0s", "--publish="+at+":"+ports[0])
		w.noProcesses()
	})
}
