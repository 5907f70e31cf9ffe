// Package migrate tests live migration between two hosts, with real criu, on simulated GPUs.
package migrate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cucriu/hooks/timeline"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

func TestMain(m *testing.M) {
	hosts.Main(m)
}

// checkTimeline: what the destination did to restore the job lies within the time in which the
// source waited for that.
func checkTimeline(t *testing.T, r result) {
	t.Helper()
	trace := r.Timeline
	wrong := 50_000 + r.RoundTrip.Microseconds()/2 // by how much the clocks may differ
	var waited timeline.Event
	var restores int
	for _, span := range trace.Spans() {
		switch {
		case span.Name == "restore" && trace.RowOf(span) == "a":
			waited = span
		case trace.RowOf(span) == "b" && (span.Name == string(journal.StepPreRestore) || span.Name == session.StepRestoreGPU):
			restores++
			if span.Start < waited.Start-wrong || span.Start+span.Duration > waited.Start+waited.Duration+wrong {
				t.Errorf("%s took from %d to %d µs, and the source waited from %d to %d", span.Name, span.Start, span.Start+span.Duration, waited.Start, waited.Start+waited.Duration)
			}
		}
	}
	if restores != 2 {
		t.Errorf("%d of 2 steps of the restore are in the timeline: %+v", restores, trace.Events)
	}
}

// result is what the tests look at of a migration's JSON.
type result struct {
	DryRun    bool `json:"dry_run"`
	Bytes     int64
	Ahead     int64         `json:"ahead_bytes"`
	Unchanged int64         `json:"unchanged_bytes"`
	Link      int64         `json:"link_bytes"`
	Pause     time.Duration `json:"pause_ns"`
	Predicted time.Duration `json:"predicted_pause_ns"`
	Before    time.Duration `json:"precopy_pause_ns"`
	Bandwidth float64       `json:"bytes_per_second"`
	RoundTrip time.Duration `json:"round_trip_ns"`
	MTU       int
	PaysFrom  float64 `json:"precopy_pays_from"`
	Timeline  timeline.Trace
	Phases    []struct {
		Name string
		Took time.Duration `json:"took_ns"`
	}
	said string // meanwhile
}

// move migrates a work, and fails the test unless it is there afterwards.
func move(t *testing.T, w *hosts.Job, from, to *hosts.Host, args ...string) result {
	t.Helper()
	w.Is(from)
	w.Prepare(to)
	r := migrate(t, w, from, to, args...)
	w.Is(to)
	return r
}

// onlyOn fails the test unless the only copy of a work is on this host. A killed one may not have ended.
func onlyOn(t *testing.T, w *hosts.Job, on *hosts.Host) {
	t.Helper()
	testenv.Eventually(t, testenv.Soon, "there is one copy, on host "+on.Name, func() bool {
		copies := w.Copies()
		return len(copies) == 1 && copies[0].Host == on
	})
}

func migrate(t *testing.T, w *hosts.Job, from, to *hosts.Host, args ...string) (r result) {
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
	r.said = said.String()
	return r
}

// TestAReaderThatHasStoppedHoldsNoJob: a migration does not wait until somebody reads what it says.
func TestAReaderThatHasStoppedHoldsNoJob(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		w := newWorld(t, "cuda")
		w.work.Prepare(w.to)
		w.from.Setenv("CUCRIU_LOG", "debug")
		w.to.Setenv("CUCRIU_LOG", "debug")
		cmd := w.from.Command(t.Context(), "cucriu", "migrate", "-t", w.work.Root(), "--to", w.to.Name, "--copy-files", "changed")
		cmd.Stderr = testenv.StuckTerminal(t)
		if out, err := cmd.Output(); err != nil {
			t.Fatalf("%v: %v: %s", cmd.Args, err, out)
		}
		w.is(w.to)
	})
}

func TestAhead(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		w := p.A.Start(1, "--mib", "16", "--ballast", "128")
		watch := w.Watch()
		first := move(t, w, p.A, p.B, "--precopy", "-v")
		if first.Ahead < 128<<20 || first.Bytes > 64<<20 {
			t.Errorf("%d bytes were sent ahead and %d at the standstill; most of the 128 MiB does not change", first.Ahead, first.Bytes)
		}
		_, ahead, _ := strings.Cut(first.said, "sending its memory while the job keeps running\n")
		if ahead, _, _ = strings.Cut(ahead, "comparing its memory"); ahead == "" || strings.Contains(ahead, "sending the job") {
			t.Errorf("it says that the job is sent before it stands still:\n%s", first.said)
		}
		move(t, w, p.B, p.A, "--precopy")
		watch.Stop()
	})
}

// TestOnlyWhatHasChangedIsCopiedAgain of a job that has the library. If the migration fails then, the job stays, with all of its memory.
func TestOnlyWhatHasChangedIsCopiedAgain(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		for _, host := range []*hosts.Host{p.A, p.B} {
			host.Setenv("CUCRIU_CONFIG", host.Config(testenv.Patient))
		}
		w := p.A.StartProgram("/usr/bin/env", "LD_PRELOAD="+testenv.Guest(t), testenv.Artefact(t, "make workload", "build", "workload", "cudawork"), "--mib", "16", "--ballast", "128", "--dir")
		w.WaitTicks(p.A, 3)
		watch := w.Watch()
		for _, way := range [][2]*hosts.Host{{p.A, p.B}, {p.B, p.A}} {
			r := move(t, w, way[0], way[1], "--precopy")
			if r.Unchanged < 128<<20 || r.Bytes > 64<<20 {
				t.Errorf("%d bytes had not changed, and %d were sent at the standstill: %s", r.Unchanged, r.Bytes, r.said)
			}
		}
		watch.Stop()
		w.Prepare(p.B)
		p.A.UseFailpoint("migrate.compared=error")
		if out, err := p.A.Try("cucriu", "migrate", "-t", w.Root(), "--to", p.B.Name, "--copy-files", "changed", "--precopy"); err == nil {
			t.Fatalf("the migration has not failed: %s", out)
		}
		w.Is(p.A)
	})
}

// remembers is a job without CUDA, with memory of its own, and some that it shares with its child.
// Little of it changes.
const remembers = `
import mmap, os, random, sys, time
own = bytearray(random.Random(1).randbytes(32 << 20))
shared = mmap.mmap(-1, 8 << 20)
shared.write(random.Random(2).randbytes(8 << 20))
first = (hash(bytes(own[1 << 20:])), hash(shared[1 << 20:]))
child = os.fork() == 0
if child: own[2 << 20:3 << 20] = bytes(1 << 20)
tick = 0
while True:
    tick += 1
    own[:8] = tick.to_bytes(8, "little")
    if not child: shared[:8] = tick.to_bytes(8, "little")
    bad = int.from_bytes(own[:8], "little") != tick
    if child: bad = bad or any(own[2 << 20:3 << 20])
    if not child or bad:
        with open(sys.argv[-1] + "/status.new", "w") as f: f.write('{"tick":%d,"bad":%d}' % (tick, bad))
        try: os.rename(sys.argv[-1] + "/status.new", sys.argv[-1] + "/status")
        except FileNotFoundError: pass # it was written on the other host, and nobody had it open
    if not child and os.path.exists(sys.argv[-1] + "/check"):
        bad = bad or (hash(bytes(own[1 << 20:])), hash(shared[1 << 20:])) != first
        with open(sys.argv[-1] + "/checked.new", "w") as f: f.write('{"bad":%d,"words":1}' % bad)
        os.rename(sys.argv[-1] + "/checked.new", sys.argv[-1] + "/checked")
        os.remove(sys.argv[-1] + "/check")
    if bad: break
    time.sleep(0.02)
time.sleep(1000)
`

func TestOrdinaryMemoryGoesAhead(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		w := p.A.StartProgram("python3", "-c", remembers)
		w.WaitTicks(p.A, 3)
		watch := w.Watch()
		from, to := p.A, p.B
		for _, flags := range [][]string{{"--precopy"}, {"--bandwidth", "16M"}, {"--precopy"}} {
			r := move(t, w, from, to, flags...)
			if r.Ahead < 70<<20 || r.Bytes > 24<<20 {
				t.Errorf("%v: %d bytes were sent ahead and %d at the standstill; most of the 72 MiB do not change", flags, r.Ahead, r.Bytes)
			}
			from, to = to, from
		}
		// How fast the way is depends on the machine; what is done follows from it.
		if r := move(t, w, from, to); r.PaysFrom == 0 || (r.Ahead > 0) != (r.PaysFrom <= 0.1) {
			t.Errorf("%d bytes were sent ahead, and that pays from %v", r.Ahead, r.PaysFrom)
		}
		// What has changed is written beside the images. Where there is no room for it, all is sent.
		to.SmallDisk("/run/stage", "250m")
		to.UseFailpoint("migrate.dumped=fill /run/stage")
		if r := move(t, w, to, from, "--precopy", "--stage", "/run/stage"); r.Bytes < 70<<20 {
			t.Errorf("%d bytes were sent at the standstill, without room to write down what has changed", r.Bytes)
		}
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
later = None
for tick in range(10**6):
    text.seek(0)
    if os.path.exists(sys.argv[-1] + "/more"):
        os.makedirs(sys.argv[-1] + "/late", 0o750)
        with open(sys.argv[-1] + "/late/text", "w") as f: f.write("late")
        later = open(sys.argv[-1] + "/late/text"), socket.socket(socket.AF_UNIX)
        later[1].bind(sys.argv[-1] + "/late/socket"); later[1].listen()
        os.remove(sys.argv[-1] + "/more")
    if later:
        later[0].seek(0)
        if later[0].read() != "late": break
    with open(sys.argv[-1] + "/status.new", "w") as f: f.write('{"tick":%d,"bad":%d}' % (tick, text.read() != "text"))
    try: os.rename(sys.argv[-1] + "/status.new", sys.argv[-1] + "/status")
    except FileNotFoundError: pass # it was written on the other host, and nobody had it open
    time.sleep(0.02)
`

func TestFilesAndDirectoriesMoveWithAJob(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		w := p.A.StartProgram("python3", "-c", listens)
		w.WaitTicks(p.A, 3)
		w.Prepare(p.B)
		out, err := p.A.Try("cucriu", "migrate", "-t", w.Root(), "--to", "b", "--dry-run")
		for _, want := range []string{"/own/text does not exist here", "/own does not exist here, and the job has a socket in it"} {
			if err == nil || !strings.Contains(out, want) {
				t.Errorf("%q is not found beforehand (%v):\n%s", want, err, out)
			}
		}
		own := filepath.Join(w.Dir, "own")
		p.B.Run("sh", "-c", "mkdir -m 700 "+own+" && cd "+own+" && printf else > text && touch -r / text")
		for _, force := range [][]string{nil, {"--force", "file-differs"}} {
			var out string
			var err error
			for again := true; again; again = strings.Contains(out, "/status.new ") { // which is there for long on a busy machine
				out, err = p.A.Try("cucriu", append([]string{"migrate", "-t", w.Root(), "--to", "b", "--dry-run"}, force...)...)
			}
			if (err == nil) != (len(force) > 0) || !strings.Contains(out, "file-differs") {
				t.Errorf("with %q: %v:\n%s", force, err, out)
			}
		}
		p.B.Run("rm", "-r", own)
		migrate(t, w, p.A, p.B)
		w.WaitTicks(p.B, 3)
		onlyOn(t, w, p.B)
	})
}

// TestAJobMovesToTheGPUsThatTheSourceNames, and the destination's own map does not matter.
func TestAJobMovesToTheGPUsThatTheSourceNames(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		two := hosts.HostOptions{GPUs: 2}
		p := hosts.New(t, hosts.Options{A: two, B: two})
		const to = "[{from: {index: 0}, to: {index: %d}}]"
		p.A.Setenv("CUCRIU_CONFIG", p.A.Config("version: 1\nhosts: {b: {map: "+fmt.Sprintf(to, 1)+"}}\n"))
		p.B.Setenv("CUCRIU_CONFIG", p.B.Config("version: 1\ngpus: {map: "+fmt.Sprintf(to, 0)+"}\n"))
		w := p.A.Start(1, "--gpus", "0", "--mib", "8")
		move(t, w, p.A, p.B)
		if s, err := w.Status(p.B, 0); err != nil || s.GPUs[0].UUID != p.B.UUIDs()[1] {
			t.Fatalf("the job is on %+v (%v), and not on %s", s.GPUs, err, p.B.UUIDs()[1])
		}
		onlyOn(t, w, p.B)
	})
}

// TestWhatAJobComesToUseBeforeItStandsStillMovesToo: as the loaders of a training that begins its
// next epoch.
func TestWhatAJobComesToUseBeforeItStandsStillMovesToo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		w := &world{t: t, Pair: p, from: p.A, to: p.B, work: p.A.StartProgram("python3", "-c", listens)}
		w.work.WaitTicks(p.A, 3)
		more := func(point string, flags ...string) *migration {
			p.A.Run("rm", "-rf", filepath.Join(w.work.Dir, "late"))
			m := w.begin(t, point, "", flags...)
			if !m.reached() {
				t.Fatal("the migration ended before")
			}
			p.A.Run("touch", filepath.Join(w.work.Dir, "more"))
			testenv.Eventually(t, testenv.Soon, "the job uses more", func() bool { return !testenv.Exists(p.A.Path(filepath.Join(w.work.Dir, "more"))) })
			m.goOn()
			return m
		}
		p.B.Run("sh", "-c", "mkdir -p "+w.work.Dir+"/own && printf text > "+w.work.Dir+"/own/text")
		m := more("migrate.opened", "--copy-files", "none", "--force", "file-differs")
		if status := m.status(); status != 1 || !strings.Contains(m.out.String(), "/late/text does not exist here") || !strings.Contains(m.out.String(), "the job keeps running here") {
			t.Errorf("exit status %d:\n%s", status, m.out.String())
		}
		w.work.WaitTicks(p.A, 3)
		m = more("receive.later=kill,migrate.opened")
		if status := m.status(); status != 1 || !strings.Contains(m.out.String(), "the job keeps running here") {
			t.Errorf("exit status %d:\n%s", status, m.out.String())
		}
		w.work.WaitTicks(p.A, 3)
		if status := more("migrate.opened").status(); status != 0 {
			t.Fatalf("exit status %d", status)
		}
		w.work.WaitTicks(p.B, 3)
		onlyOn(t, w.work, p.B)
		if mode := p.B.Run("stat", "-c", "%a", filepath.Join(w.work.Dir, "late")); strings.TrimSpace(mode) != "750" {
			t.Errorf("the directory has the mode %s", mode)
		}
	})
}

// TestDataGoesThroughSSHAsWell, through an sshd that drops a second connection while somebody logs in, and some of the others.
func TestDataGoesThroughSSHAsWell(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{SSHD: []string{"MaxStartups 1"}})
		w := p.A.Start(1, "--mib", "16")
		testenv.WriteFile(t, p.A.Path("/tmp/ssh"), `case "$*" in
*--relay*) for n in 1 2; do mkdir /tmp/dropped-$n 2>/dev/null && exit 255; done ;;
esac
exec ssh "$@"
`)
		r := move(t, w, p.A, p.B, "--via", "ssh", "--rsh", "sh /tmp/ssh", "--timeline")
		if !testenv.Exists(p.A.Path("/tmp/dropped-2")) {
			t.Error("no connection was dropped")
		}
		checkTimeline(t, r)
		w.Prepare(p.A)
		move(t, w, p.B, p.A, "--bind", p.A.Addr.String(), "--ports", "7100-7110")
		testenv.Eventually(t, testenv.Soon, "no relay is left", func() bool { return len(p.B.Find("receive", "--relay")) == 0 })
	})
}

// TestTheGPUStateLeavesWhileTheDumpGoesOn: it is on its way before criu has written anything.
func TestTheGPUStateLeavesWhileTheDumpGoesOn(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		w := newWorld(t, "cuda")
		m := w.begin(t, "dump.dropping", "")
		if !m.reached() {
			t.Fatal("the migration ended before")
		}
		testenv.Eventually(t, testenv.Soon, "the GPU state is at the destination", func() bool {
			out, _ := w.to.Try("sh", "-c", "cat $(find /dev/shm -name 'cucriu-pages-*') | wc -c")
			sent, _ := strconv.Atoi(strings.TrimSpace(out))
			return sent > 4<<20
		})
		m.goOn()
		if status := m.status(); status != 0 {
			t.Fatalf("cucriu migrate ended with %d", status)
		}
		w.is(w.to)
		w.watch.Stop()
	})
}
