package figures

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"cucriu/internal/testenv/hosts"
)

// The ways to move a job, and how often its size they take in memory at most, as measured: the job,
// its image on both hosts, and the job there while it is restored.
var ways = []struct {
	name  string
	takes float64
	move  func(f *figures, w *hosts.Job) row
}{
	{"cucriu migrate", 4.5, func(f *figures, w *hosts.Job) row { return migrated(f.migrate(w, "--precopy=never")) }},
	{"with --precopy", 6, func(f *figures, w *hosts.Job) row { return migrated(f.migrate(w, "--precopy")) }},
	{"by hand", 5, func(f *figures, w *hosts.Job) row { return byHand(f.byHand(w)) }},
}

// row is one move.
type row struct {
	pause, dump, compare, send, restore time.Duration
	sent                                int64
	ahead                               int64         // bytes, while the job ran
	before                              time.Duration // the standstill of the pre-copy
	total                               time.Duration
	predicted                           time.Duration
	used                                int64
	steps                               []step
}

func migrated(m migration) row {
	return row{
		pause: m.Pause, dump: m.phase("dump").length(), compare: m.phase("compare").length(), send: m.phase("send").length(),
		restore: m.phase("restore").length(), sent: m.Bytes, ahead: m.Ahead, before: m.Before, total: m.Total, predicted: m.Predicted, used: m.used, steps: m.steps(),
	}
}

func byHand(h hand) row {
	return row{pause: h.pause(), dump: h.dump.length(), send: h.copy.length(), restore: h.restore.length(), sent: h.bytes, total: h.pause(), used: h.used}
}

// result is what moves of one size and in one way took.
type result struct {
	bytes int64
	way   string
	rows  []row
}

func (r result) median() row {
	sorted := slices.SortedFunc(slices.Values(r.rows), func(a, b row) int { return cmp.Compare(a.pause, b.pause) })
	return sorted[len(sorted)/2]
}

const (
	columns = "| GPU memory | | stood still | dump | compare | send | restore | sent at the standstill | before | extra standstill before | in all | predicted | memory, both hosts |"
	align   = "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
)

// sizes moves jobs of each size in all ways, several times.
func (f *figures) sizes(sizes []float64) {
	f.say("\n## Cost against size\n\n%s\n%s", columns, align)
	var results []result
	for _, gibs := range sizes {
		results = append(results, f.size(int64(gibs*gib))...)
	}
	f.say("\nThe runs with the median standstill:\n\n%s\n%s", columns, align)
	for _, r := range results {
		f.show(r.bytes, r.way, r.median())
	}
	for _, way := range ways {
		f.steps(way.name, slices.DeleteFunc(slices.Clone(results), func(r result) bool { return r.way != way.name || r.rows[0].steps == nil }))
	}
}

func (f *figures) size(bytes int64) (results []result) {
	if left := available(); float64(left) < float64(bytes)*ways[0].takes+2*gib {
		f.say("| %s | left out: it takes %g times as much memory, and %d MiB are available | | | | | | | | | | | |", size(bytes), ways[0].takes, left/mib)
		return nil
	}
	w := f.start(bytes)
	defer f.endWork(w)
	f.migrate(w) // not measured: the memory of a virtual machine is slow when it is touched for the first time
	for _, way := range ways {
		if way.name == "by hand" && f.bare {
			continue
		}
		r := result{bytes: bytes, way: way.name}
		for range f.repeat {
			if left := available(); float64(left) < float64(bytes)*(way.takes-1)+2*gib {
				f.say("| %s | %s: left out, it takes %g times as much memory, and %d MiB are available beside the job | | | | | | | | | | | |", size(bytes), way.name, way.takes, left/mib)
				break
			}
			loaded := f.waitUntilQuiet()
			moved := way.move(f, w)
			r.rows = append(r.rows, moved)
			f.show(bytes, way.name+loaded, moved)
		}
		if len(r.rows) > 0 {
			results = append(results, r)
		}
	}
	return results
}

func (f *figures) show(bytes int64, way string, r row) {
	f.say("| %s | %s | %s | %s | %s | %s | %s | %d MiB | %d MiB | %s | %s | %s | %.1f × |", size(bytes), way, seconds(r.pause), seconds(r.dump), seconds(r.compare),
		seconds(r.send), seconds(r.restore), r.sent/mib, r.ahead/mib, seconds(r.before), seconds(r.total), seconds(r.predicted), float64(r.used+bytes)/float64(bytes))
}

// noticeable is what a step takes at least that is shown.
const noticeable = 5 * time.Millisecond

// steps shows what both hosts did in the runs with the median standstill.
func (f *figures) steps(way string, results []result) {
	if len(results) == 0 {
		return
	}
	var names []step
	took := make(map[step][]string)
	for i, r := range results {
		for _, s := range r.median().steps {
			name := step{host: s.host, name: s.name}
			if !slices.Contains(names, name) && s.took >= noticeable {
				names = append(names, name)
			}
			if took[name] == nil {
				took[name] = make([]string, len(results))
			}
			took[name][i] = fmt.Sprintf("%.3f", s.took.Seconds())
		}
	}
	sizes, lines := "", ""
	for _, r := range results {
		sizes, lines = sizes+" "+size(r.bytes)+" |", lines+"---:|"
	}
	f.say("\nThe steps of these runs, %s, in seconds. A step may be part of another, or go on beside it:\n\n| | |%s\n|---|---|%s", way, sizes, lines)
	for _, name := range names {
		f.say("| %s | %s | %s |", name.host, name.name, strings.Join(took[name], " | "))
	}
}
