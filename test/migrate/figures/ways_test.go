package figures

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"cucriu/hooks/timeline"
	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// migration is what cucriu migrate --json says.
type migration struct {
	Bytes     int64
	Ahead     int64         `json:"ahead_bytes"`
	Link      int64         `json:"link_bytes"`
	Pause     time.Duration `json:"pause_ns"`
	Predicted time.Duration `json:"predicted_pause_ns"`
	Before    time.Duration `json:"precopy_pause_ns"`
	Total     time.Duration `json:"total_ns"`
	Bandwidth float64       `json:"bytes_per_second"`
	Phases    []struct {
		Name  string
		Begin time.Duration `json:"begin_ns"`
		Took  time.Duration `json:"took_ns"`
	}
	Timeline timeline.Trace

	ran  span // of the command
	from *hosts.Host
	used int64 // bytes of memory on both hosts at most, beyond what there was before
}

// phase returns when a phase was.
func (m migration) phase(name string) span {
	begun := m.ran.end.Add(-m.Total)
	for _, p := range m.Phases {
		if p.Name == name {
			return span{begun.Add(p.Begin), begun.Add(p.Begin + p.Took)}
		}
	}
	return span{}
}

// step is a part of a phase, or a whole one, on one of the hosts.
type step struct {
	host, name string
	took       time.Duration
}

// steps returns what both hosts did, in the order in which it began. What was done several times is
// summed up.
func (m migration) steps() (all []step) {
	for _, e := range m.Timeline.Spans() {
		s := step{host: "destination", name: e.Name}
		if m.Timeline.RowOf(e) == m.from.Name {
			s.host = "source"
		}
		at := slices.IndexFunc(all, func(o step) bool { return o.host == s.host && o.name == s.name })
		if at < 0 {
			at, all = len(all), append(all, s)
		}
		all[at].took += time.Duration(e.Duration) * time.Microsecond
	}
	return all
}

// migrate moves a job to the other host, and checks it there.
func (f *figures) migrate(w *hosts.Job, options ...string) (m migration) {
	f.t.Helper()
	from, to := w.Host, f.other(w.Host)
	w.Prepare(to)
	if f.bare {
		options = append(options, "--rsh", from.RSH())
	}
	before := available()
	w.WaitTicks(from, 3) // the simulated driver opens its memory for a comparison, which has just ended
	out, ran := f.do(from, "cucriu", append([]string{"migrate", "-t", w.Root(), "--to", to.Name, "--copy-files", "changed", "--json", "--timeline"}, options...)...)
	if err := json.Unmarshal(out, &m); err != nil {
		f.t.Fatalf("%v: %s", err, out)
	}
	m.ran, m.from, m.used = ran, from, before-f.meter.least(ran)
	w.Is(to)
	return m
}

func (f *figures) other(h *hosts.Host) *hosts.Host {
	if h == f.A {
		return f.B
	}
	return f.A
}

// hand is a move by hand.
type hand struct {
	dump, copy, restore span
	bytes               int64 // of the image
	used                int64
}

func (h hand) pause() time.Duration { return h.restore.end.Sub(h.dump.begin) }

// byHand moves a job to the other host with criu and the hook, and rsync between them.
func (f *figures) byHand(w *hosts.Job) (m hand) {
	f.t.Helper()
	from, to := w.Host, f.other(w.Host)
	for _, h := range f.Hosts() {
		f.do(h, "mkdir", "-m", "0700", imageDir)
	}
	criu := func(h *hosts.Host, verb string, args ...string) span {
		all := []string{verb, "--no-default-config", "-D", imageDir, "-o", verb + ".log", "-v2", "--action-script", h.HookBin}
		_, took := f.do(h, testenv.Criu(f.t), append(all, args...)...)
		return took
	}
	before, begin := available(), time.Now()
	m.dump = criu(from, "dump", "-t", w.Root())
	out, _ := f.do(from, "du", "-sb", imageDir)
	m.bytes, _ = strconv.ParseInt(strings.Fields(string(out))[0], 10, 64)
	_, m.copy = f.do(from, filepath.Join(f.net, "rsync"), "-a", "-e", "ssh", "--rsync-path", filepath.Join(f.net, "rsync"), imageDir+"/", to.Name+":"+imageDir+"/")
	w.Carry(to)
	m.restore = criu(to, "restore", "-d")
	m.used = before - f.meter.least(span{begin, time.Now()})
	for _, h := range f.Hosts() {
		f.do(h, "rm", "-r", imageDir)
	}
	w.Is(to)
	return m
}
