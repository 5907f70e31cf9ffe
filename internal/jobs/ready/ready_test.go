package ready

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{ // what the error says
		"http://localhost:8000/health":          "",
		"https://127.0.0.1/":                    "",
		"http://[::1]:8000":                     "",
		"http://localhost:0/":                   "between 1 and 65535",
		"http://server:8000/":                   "localhost or an IP address",
		"http:///health":                        "localhost or an IP address",
		"http://local\x00host/":                 "invalid",
		"tcp:8000":                              "",
		"tcp:0":                                 "between 1 and 65535",
		"tcp:65536":                             "between 1 and 65535",
		"tcp:localhost:80":                      "between 1 and 65535",
		"file:/run/ready":                       "",
		"file:ready":                            "absolute path",
		"file:":                                 "absolute path",
		"log:ready to serve":                    "",
		"log:":                                  "part of one line",
		"log:two\nlines":                        "part of one line",
		"log:" + strings.Repeat("x", maxText+1): "part of one line",
		"":                                      "want http",
		"udp:80":                                "want http",
		"localhost:80":                          "want http",
		"ftp://localhost/":                      "want http",
	} {
		c, err := Parse(text)
		says := ""
		if err != nil {
			says = err.Error()
		}
		if c.String() != text || (says == "") != (want == "") || !strings.Contains(says, want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

// probe is one of this process.
func probe(t *testing.T, text string) *Probe {
	t.Helper()
	c, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	p := &Probe{Condition: c, PID: os.Getpid()}
	t.Cleanup(p.Close)
	return p
}

func (p *Probe) is(t *testing.T, met bool) {
	t.Helper()
	if err := p.Met(t.Context()); (err == nil) != met {
		t.Errorf("%s: %v, want %v", p, err, met)
	}
}

func write(t *testing.T, path, text string, flags int) {
	t.Helper()
	f, err := os.OpenFile(path, flags|os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestALineIsFound across the parts that are read at once, after the file was emptied or renamed, and not if it was
// there before.
func TestALineIsFound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "output.log")
	newProbe := func() *Probe {
		p := probe(t, "log:I am ready")
		p.Output, p.From = path, int64(len("I am ready\n"))
		return p
	}
	write(t, path, "I am ready\n", 0)
	p := newProbe()
	p.is(t, false)
	write(t, path, strings.Repeat("x", chunk-20)+"\nI am ", os.O_APPEND)
	p.is(t, false)
	write(t, path, "ready\n", os.O_APPEND)
	p.is(t, true)
	newProbe().is(t, true)

	p = newProbe()
	write(t, path, "", os.O_TRUNC)
	p.is(t, false)
	write(t, path, "I am ready\n", os.O_TRUNC)
	p.is(t, true)

	write(t, path, strings.Repeat("y", 2*maxRead+chunk)+"I am ready", os.O_TRUNC)
	p = newProbe()
	for range 2 {
		p.is(t, false) // so much is not read at once
	}
	p.is(t, true)

	write(t, path, "I am ready\n", os.O_TRUNC)
	p = newProbe()
	p.is(t, false)
	old, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(old, "I am ready")
	p.is(t, true)
}

func TestAFileIsFound(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "ready"), filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, met := range []bool{false, true} {
		probe(t, "file:"+path).is(t, met)
		probe(t, "file:"+link).is(t, met)
		write(t, path, "", 0)
	}
}

func TestAServerIsAsked(t *testing.T) {
	for name, start := range map[string]func(http.Handler) *httptest.Server{
		"http": httptest.NewServer, "https": httptest.NewTLSServer,
	} {
		server := start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/loading" {
				w.WriteHeader(http.StatusServiceUnavailable)
			} else if r.URL.Path == "/redirect" {
				http.Redirect(w, r, "/", http.StatusFound)
			}
			fmt.Fprint(w, strings.Repeat("z", 2*maxAnswer))
		}))
		defer server.Close()
		_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
		for path, met := range map[string]bool{"/": true, "/loading": false, "/redirect": false} {
			p := probe(t, name+"://localhost:"+port+path)
			p.is(t, met)
			sockets, err := proc.TCPSockets(p.PID)
			for _, s := range sockets {
				if s.Local.Port() == p.connects[0].Port() && !s.Listening() {
					t.Errorf("after %s, there is %+v (%v)", p, s, err)
				}
			}
		}
	}
}

// TestAConnectionThatNobodyTakesIsNone, and is the only one.
func TestAConnectionThatNobodyTakesIsNone(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		listener, err := net.Listen("tcp", address)
		if errors.Is(err, unix.EADDRNOTAVAIL) {
			t.Skip("this host is without IPv6")
		}
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(listener.Addr().String())
		p := probe(t, "tcp:"+port)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if err := p.Met(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", address, err)
		}
		cancel()
		for range 2 { // which adds none
			if err := p.Met(t.Context()); err == nil || !strings.Contains(err.Error(), "connections wait") {
				t.Errorf("%s: %v", address, err)
			}
		}
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Read(make([]byte, 1)) // until its end
				conn.Close()
			}
		}()
		for p.refuseQueue() != nil {
			time.Sleep(lookEvery)
		}
		p.is(t, true)
		listener.Close()
		p.is(t, false)
	}
}
