package figures

import (
	"slices"
	"time"

	"cucriu/test/hosts"
)

// The ways to move a job, and how often its size they take in memory at most, as measured: the job,
// its image on both hosts, and the job there while it is restored.
var ways = []struct {
	name  string
	takes float64
	move  func(f *figures, w *hosts.Work) row
}{
	{"cucriu migrate", 4, func(f *figures, w *hosts.Work) row { return migrated(f.migrate(w)) }},
	{"with --precopy", 6, func(f *figures, w *hosts.Work) row { return migrated(f.migrate(w, "--precopy")) }},
	{"by hand", 4, func(f *figures, w *hosts.Work) row { return byHand(f.byHand(w)) }},
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
}

func migrated(m migration) row {
	return row{
		pause: m.Pause, dump: m.phase("dump").length(), compare: m.phase("compare").length(), send: m.phase("send").length(),
		restore: m.phase("restore").length(), sent: m.Bytes, ahead: m.Ahead, before: m.Before, total: m.Total, predicted: m.Predicted, used: m.used,
	}
}

func byHand(h hand) row {
	return row{pause: h.pause(), dump: h.dump.length(), send: h.copy.length(), restore: h.restore.length(), sent: h.bytes, total: h.pause(), used: h.used}
}

// sizes moves jobs of each size in all ways, several times.
func (f *figures) sizes(sizes []float64) {
	f.say("\n## Cost against size\n")
	f.say("| GPU memory | | stood still | dump | compare | send | restore | sent at the standstill | before | extra standstill before | in all | predicted | memory, both hosts |")
	f.say("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
	type result struct {
		bytes int64
		way   string
		rows  []row
	}
	var results []result
	for _, gibs := range sizes {
		bytes := int64(gibs * gib)
		if float64(available()) < float64(bytes)*4+2*gib {
			f.say("| %s | left out: it takes four times as much memory, and %d MiB are available | | | | | | | | | | | |", size(bytes), available()/mib)
			continue
		}
		w := f.start(bytes)
		f.migrate(w) // not measured: the memory of a virtual machine is slow when it is touched for the first time
		for _, way := range ways {
			r := result{bytes: bytes, way: way.name}
			for range f.repeat {
				if left := available(); float64(left) < float64(bytes)*(way.takes-1)+2*gib {
					f.say("| %s | %s: left out, it takes %g times as much memory, and %d MiB are available | | | | | | | | | | | |", size(bytes), way.name, way.takes, left/mib)
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
		f.endWork(w)
	}
	f.say("\nThe runs with the median standstill:\n")
	f.say("| GPU memory | | stood still | dump | compare | send | restore | sent at the standstill | before | extra standstill before | in all | predicted | memory, both hosts |")
	f.say("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
	for _, r := range results {
		slices.SortFunc(r.rows, func(a, b row) int { return int(a.pause - b.pause) })
		f.show(r.bytes, r.way, r.rows[len(r.rows)/2])
	}
}

func (f *figures) show(bytes int64, way string, r row) {
	f.say("| %s | %s | %s | %s | %s | %s | %s | %d MiB | %d MiB | %s | %s | %s | %.1f × |", size(bytes), way, seconds(r.pause), seconds(r.dump), seconds(r.compare),
		seconds(r.send), seconds(r.restore), r.sent/mib, r.ahead/mib, seconds(r.before), seconds(r.total), seconds(r.predicted), float64(r.used+bytes)/float64(bytes))
}
