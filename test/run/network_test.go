package run

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// networkServer serves at each of its arguments, ADDRESS,PORT. At /self a server answers what it has said to itself, by a
// connection that it has had since it was started.
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
    address, port = at.split(",")
    Server.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = Server((address, int(port)), Handler)
    threading.Thread(target=server.serve_forever).start()
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

// serves starts a job that serves at these addresses, and makes a checkpoint of it.
func (w *world) serves(addresses ...string) (r *run, ports []string) {
	w.t.Helper()
	testenv.WriteFile(w.t, filepath.Join(w.work, "server.py"), networkServer)
	w.command = []string{"python3", filepath.Join(w.work, "server.py")}
	for _, address := range addresses {
		port := testenv.FreePort(w.t)
		ports = append(ports, port)
		w.command = append(w.command, address+","+port)
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

// TestAJobFromAnImageHasTheAddressesOfItsSockets in a network of its own: whatever a server is bound to, it is reached by
// its published port and by itself, twice at the same time, and after it was resumed.
func TestAJobFromAnImageHasTheAddressesOfItsSockets(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		own, own6 := ownAddress(t, false), ownAddress(t, true)
		original, ports := w.serves("0.0.0.0", "127.0.0.1", "::", "::1", own6, own)
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
		original, ports := w.serves("0.0.0.0")
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
