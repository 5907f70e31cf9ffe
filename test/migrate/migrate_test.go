// Package migrate tests live migration between two hosts, with real criu, on simulated GPUs.
package migrate

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"cucriu/internal/testenv"
	"cucriu/test/hosts"
)

func TestMain(m *testing.M) { hosts.Main(m) }

func TestThereAndBack(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		w := p.A.Start(1, "--mib", "64", "--loaders", "2")
		watch := w.Watch()
		for range 2 {
			move(t, w, p.A, p.B)
			move(t, w, p.B, p.A)
		}
		watch.Stop()
	})
}

// result is what the tests look at of a migration's JSON.
type result struct {
	Bytes     int64
	Ahead     int64         `json:"ahead_bytes"`
	Link      int64         `json:"link_bytes"`
	Pause     time.Duration `json:"pause_ns"`
	Predicted time.Duration `json:"predicted_pause_ns"`
	Before    time.Duration `json:"precopy_pause_ns"`
	Bandwidth float64       `json:"bytes_per_second"`
	Phases    []struct {
		Name string
		Took time.Duration `json:"took_ns"`
	}
}

// move migrates a work, and fails the test unless it is there afterwards.
func move(t *testing.T, w *hosts.Work, from, to *hosts.Host, args ...string) result {
	t.Helper()
	w.Is(from)
	w.Prepare(to)
	r := migrate(t, w, from, to, args...)
	w.Is(to)
	return r
}

func migrate(t *testing.T, w *hosts.Work, from, to *hosts.Host, args ...string) (r result) {
	t.Helper()
	cmd := from.Command(t.Context(), "cucriu", append([]string{"migrate", "-t", w.Root(), "--to", to.Name, "--copy-files", "changed", "--json"}, args...)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s%s", cmd.Args, err, said.Bytes(), out)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return r
}

func TestAhead(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		w := p.A.Start(1, "--mib", "16", "--ballast", "128")
		watch := w.Watch()
		first := move(t, w, p.A, p.B, "--precopy")
		if first.Ahead < 128<<20 || first.Bytes > 64<<20 {
			t.Errorf("%d bytes were sent ahead and %d at the standstill; most of the 128 MiB does not change", first.Ahead, first.Bytes)
		}
		move(t, w, p.B, p.A, "--precopy")
		watch.Stop()
	})
}

// listens is a job without CUDA that has a socket and reads a file in a directory of its own.
const listens = `
import os, socket, sys, time
own = sys.argv[-1] + "/own"
os.makedirs(own, 0o700)
with open(own + "/text", "w") as f: f.write("text")
text = open(own + "/text")
s = socket.socket(socket.AF_UNIX); s.bind(own + "/socket"); s.listen()
for tick in range(10**6):
    text.seek(0)
    with open(sys.argv[-1] + "/status.new", "w") as f: f.write('{"tick":%d,"bad":%d}' % (tick, text.read() != "text"))
    os.rename(sys.argv[-1] + "/status.new", sys.argv[-1] + "/status")
    time.sleep(0.02)
`

func TestFilesAndDirectoriesMoveWithAJob(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		w := p.A.StartProgram("python3", "-c", listens)
		w.Ticks(p.A, 3)
		w.Prepare(p.B)
		out, err := p.A.Try("cucriu", "migrate", "-t", w.Root(), "--to", "b", "--dry-run")
		for _, want := range []string{"/own/text does not exist here", "/own does not exist here, and the job has a socket in it"} {
			if err == nil || !strings.Contains(out, want) {
				t.Errorf("%q is not found beforehand (%v):\n%s", want, err, out)
			}
		}
		migrate(t, w, p.A, p.B)
		w.Ticks(p.B, 3)
		if copies := w.Copies(); len(copies) != 1 || copies[0].Host != p.B {
			t.Errorf("want one copy, on host b; there are %v", copies)
		}
	})
}

func TestDataGoesThroughSSHAsWell(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		w := p.A.Start(1, "--mib", "16")
		move(t, w, p.A, p.B, "--via", "ssh")
		w.Prepare(p.A)
		move(t, w, p.B, p.A, "--bind", p.A.Addr.String(), "--ports", "7100-7110")
		if left := p.B.Find("receive", "--relay"); len(left) > 0 {
			t.Errorf("left there: %v", left)
		}
	})
}
