// Package figures measures live migration between two hosts on one machine: how fast it sends
// beside iperf3 and rsync, and what it costs by size beside the way by hand. The GPUs are
// simulated.
package figures

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

func TestMain(m *testing.M) { hosts.Main(m) }

const (
	// stepLimit is far more than one step takes.
	stepLimit = 3 * time.Minute
	runLimit  = 50 * time.Minute
	gib       = 1 << 30
	mib       = 1 << 20
	// each is the GPU memory that changes at each tick, in MiB. The rest is never written again. It
	// is little, so that the job leaves the processors to what is measured.
	each = 1
)

// figures is one run.
type figures struct {
	*hosts.Pair
	t      *testing.T
	out    *os.File // each line as soon as it is known
	meter  *meter
	net    string // the directory of iperf3 and rsync; empty without them
	bare   bool   // there is no sshd: the rig's own remote shell is used
	repeat int
	// patience is how long a measurement waits for a quiet machine.
	patience time.Duration
}

// TestFigures writes a report into the file that CUCRIU_FIGURES names. CUCRIU_FIGURES_BARE leaves
// out what needs sshd, iperf3 and rsync, which a machine for GPUs may lack.
func TestFigures(t *testing.T) {
	file := os.Getenv("CUCRIU_FIGURES")
	if file == "" {
		t.Skip("takes a quarter of an hour on a quiet machine: make bench-migrate")
	}
	testenv.IsolatedFor(t, runLimit, func(t *testing.T) {
		out, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		var sizes []float64
		for _, text := range strings.Fields(setting("SIZES", "0.25 0.5 1 2 4 8")) {
			sizes = append(sizes, number(t, text))
		}
		large := hosts.HostOptions{Simulator: []string{"--mib-per-gpu", "32768"}}
		f := &figures{
			t: t, out: out, net: os.Getenv("CUCRIU_BENCH_NET"), bare: setting("BARE", "") != "",
			repeat: int(number(t, setting("REPEAT", "3"))), patience: time.Minute,
		}
		if text := setting("PATIENCE", ""); text != "" {
			f.patience = time.Duration(number(t, text) * float64(time.Second))
		}
		f.meter = startMeter(func(left int64) {
			f.say("\nended: only %d MiB of memory are left", left/mib)
			os.Exit(1) // and with it everything below this process
		})
		defer f.meter.stop()
		f.Pair = hosts.New(t, hosts.Options{A: large, B: large, WithoutSSH: f.bare})
		f.machine()
		if !f.bare {
			f.throughput(number(t, setting("THROUGHPUT", "2")))
		}
		f.sizes(sizes)
		f.say("\nThe run ended at %s.", time.Now().UTC().Format("15:04 UTC"))
	})
}

func setting(name, otherwise string) string {
	if text := os.Getenv("CUCRIU_FIGURES_" + name); text != "" {
		return text
	}
	return otherwise
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n <= 0 {
		t.Fatalf("%q is not a number of what there is", text)
	}
	return n
}

// say writes a line.
func (f *figures) say(format string, args ...any) {
	if _, err := fmt.Fprintf(f.out, format+"\n", args...); err != nil {
		f.t.Error(err)
	}
}

// do runs a command on a host, within the limit of a step, and returns what it printed and how long
// it took.
func (f *figures) do(h *hosts.Host, name string, args ...string) ([]byte, span) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), stepLimit)
	defer cancel()
	cmd := h.Command(ctx, name, args...)
	var said strings.Builder
	cmd.Stderr = &said
	cmd.WaitDelay = 5 * time.Second
	begin := time.Now()
	out, err := cmd.Output()
	took := span{begin, time.Now()}
	if err != nil {
		f.t.Fatalf("on host %s, %s %v, after %v: %v\n%s%s", h.Name, filepath.Base(name), args, took.length(), err, said.String(), out)
	}
	return out, took
}

// span is a time in which something was done.
type span struct{ begin, end time.Time }

func (s span) length() time.Duration { return s.end.Sub(s.begin) }

// start starts a job with so much GPU memory in all.
func (f *figures) start(bytes int64) *hosts.Job {
	f.t.Helper()
	return f.A.Start(1, "--mib", strconv.Itoa(each), "--ballast", strconv.FormatInt(bytes/mib-each, 10), "--tick-ms", "20")
}

// endWork kills every copy of a job.
func (f *figures) endWork(w *hosts.Job) {
	f.t.Helper()
	for _, p := range w.Copies() {
		if err := p.Kill(); err != nil {
			f.t.Error(err)
		}
	}
	testenv.Eventually(f.t, testenv.Soon, "the job ends", func() bool { return len(w.Copies()) == 0 })
}

func seconds(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", d.Seconds())
}

func size(bytes int64) string { return fmt.Sprintf("%g GiB", float64(bytes)/gib) }
