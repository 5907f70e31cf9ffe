package migrate

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// faultsVariable says that everything goes wrong at each point, and not only some: "all", or
// "quick" without what takes long until somebody notices. It may name faults instead.
const faultsVariable = "CUCRIU_MIGRATE_FAULTS"

// The points of a migration, in their order. Those before decision leave the job at the source
// if the migration is cut off there.
var (
	beforeDecision = []string{
		"migrate.connected", "receive.greeted", "receive.judged", "migrate.judged", "receive.listening", "migrate.opened",
		"dump.lock", "dump.park", "dump.checkpoint", "dump.copy", "dump.dropping", "dump.manifest", "dump.post-dump", "dump.dumped",
		"migrate.dumped", "migrate.sent", "migrate.asked", "receive.asked", "receive.put",
		"restore.pre-restore", "restore.post-restore", "restore.pre-resume", "restore.post-resume", "restore.back.restore",
		"receive.restored",
	}
	promised      = []string{"receive.promised", "receive.say-ready", "migrate.ready"}
	afterDecision = []string{
		"dump.decided", "dump.close", "migrate.kill-copy", "migrate.told", "receive.heard", "restore.decided", "restore.back.unpark", "restore.close",
		"receive.go", "receive.say-running", "migrate.say-commit", "migrate.close",
	}
)

// fault is what goes wrong.
type fault struct {
	name string
	do   func(t *testing.T, w *world)
	// harmless says that the migration goes on all the same.
	harmless bool
	cause    string // what the error of cucriu migrate says
	off      bool   // a host loses its power
	slow     bool   // it takes time until somebody notices
}

var faults = []fault{
	{name: "migrate killed", do: func(t *testing.T, w *world) { kill(t, "migrate", migrates(w.from)...) }},
	{name: "receive killed", do: func(t *testing.T, w *world) { kill(t, "receive", receives(w.to)...) }, cause: "connection|ended|closed|EOF"},
	{name: "source's watcher killed", do: func(t *testing.T, w *world) { killAny(watchers(w.from)) }, harmless: true},
	{name: "destination's watcher killed", do: func(t *testing.T, w *world) { killAny(watchers(w.to)) }, harmless: true},
	{name: "migrate and watcher killed", do: func(t *testing.T, w *world) {
		killAny(watchers(w.from))
		kill(t, "migrate", migrates(w.from)...)
	}},
	{name: "receive and watcher killed", do: func(t *testing.T, w *world) {
		killAny(watchers(w.to))
		kill(t, "receive", receives(w.to)...)
	}, cause: "connection|ended|closed"},
	{name: "all killed", do: func(t *testing.T, w *world) {
		for _, h := range w.Hosts() {
			killAny(slices.Concat(watchers(h), migrates(h), receives(h), crius(h), clients(h), servers(h)))
		}
	}},
	{name: "criu killed", do: func(t *testing.T, w *world) { killAny(slices.Concat(crius(w.from), crius(w.to))) }, cause: "criu"},
	{name: "ssh killed", do: func(t *testing.T, w *world) { kill(t, "ssh", clients(w.from)...) }, cause: "connection|ssh"},
	{name: "sshd killed", do: func(t *testing.T, w *world) { kill(t, "sshd", servers(w.to)...) }, cause: "connection|ssh"},
	{name: "data connections broken", do: func(t *testing.T, w *world) { w.Break(22) }, harmless: true},
	{name: "Ctrl-C", do: func(t *testing.T, w *world) { signal(t, unix.SIGINT, migrates(w.from)) }, cause: "SIGINT"},
	{name: "receive asked to end", do: func(t *testing.T, w *world) { signal(t, unix.SIGTERM, receives(w.to)) }, cause: "SIGTERM|connection|closed"},
	{name: "SIGCONT", do: func(t *testing.T, w *world) { w.storm() }, harmless: true},
	{name: "source without power", do: func(t *testing.T, w *world) { w.from.PowerOff() }, off: true},
	{name: "destination without power", do: func(t *testing.T, w *world) { w.to.PowerOff() }, off: true, slow: true, cause: "silent|connection|reach|answers"},
	{name: "network cut", do: func(t *testing.T, w *world) { w.Cut() }, slow: true, cause: "silent|connection"},
	{name: "nothing from the source", do: func(t *testing.T, w *world) { w.CutDirection(w.from) }, slow: true, cause: "silent|connection"},
	{name: "nothing from the destination", do: func(t *testing.T, w *world) { w.CutDirection(w.to) }, slow: true, cause: "silent|connection"},
	{name: "slow link", do: func(t *testing.T, w *world) {
		w.In(t)
		w.Shape(hosts.Shape{Delay: 20 * time.Millisecond, Rate: 8 << 20})
	}, harmless: true, slow: true},
	{name: "lossy link", do: func(t *testing.T, w *world) { w.In(t); w.Shape(hosts.Shape{Delay: 2 * time.Millisecond, Loss: 0.03}) }, harmless: true, slow: true},
}

func killAny(processes []hosts.Process) {
	for _, p := range processes {
		_ = p.Kill()
	}
}

func signal(t *testing.T, s unix.Signal, processes []hosts.Process) {
	t.Helper()
	if len(processes) == 0 {
		t.Fatal("there is nobody to get the signal")
	}
	for _, p := range processes {
		if err := unix.Kill(p.Outer, s); err != nil {
			t.Fatal(err)
		}
	}
}

// storm sends SIGCONT to all processes of the job, on both hosts.
func (w *world) storm() {
	for range 50 {
		for _, h := range w.Hosts() {
			for _, p := range w.work.All(h) {
				_ = unix.Kill(p.Outer, unix.SIGCONT)
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// TestNoFaultLosesAJobOrMakesTwo: whatever goes wrong at whatever point, one copy goes on.
func TestNoFaultLosesAJobOrMakesTwo(t *testing.T) {
	testenv.Parallel(t)
	for _, point := range slices.Concat(beforeDecision, promised, afterDecision) {
		if !slices.ContainsFunc(faults, func(f fault) bool { return asked(point, f) }) {
			continue
		}
		t.Run(point, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				w := newWorld(t, "cuda")
				for _, f := range faults {
					if !asked(point, f) {
						continue
					}
					t.Run(strings.ReplaceAll(f.name, " ", "-"), func(t *testing.T) { w.survive(t, point, f) })
					if t.Failed() {
						return // what is left of it would be in the way
					}
				}
				w.watch.Stop()
			})
		})
	}
}

// TestOtherJobsSurviveToo: those without CUDA, trees of several CUDA processes with children, and
// those whose GPU memory or ordinary memory is sent ahead.
func TestOtherJobsSurviveToo(t *testing.T) {
	testenv.Parallel(t)
	for _, job := range []string{"cpu", "tree", "precopy", "memory"} {
		t.Run(job, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				w := newWorld(t, job)
				for point, names := range usual {
					if os.Getenv(faultsVariable) == "" && !slices.Contains([]string{"migrate.dumped", "dump.decided"}, point) {
						continue
					}
					for _, f := range faults {
						if slices.Contains(names, f.name) {
							t.Run(point+"/"+strings.ReplaceAll(f.name, " ", "-"), func(t *testing.T) { w.survive(t, point, f) })
						}
					}
					if t.Failed() {
						return
					}
				}
				w.watch.Stop()
			})
		})
	}
}

// TestAJobSurvivesAfterItsMemoryWasCompared: what has changed is written down, and not sent yet.
func TestAJobSurvivesAfterItsMemoryWasCompared(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		w := newWorld(t, "memory")
		for _, f := range faults {
			if slices.Contains([]string{"migrate killed", "all killed", "receive and watcher killed"}, f.name) {
				t.Run(strings.ReplaceAll(f.name, " ", "-"), func(t *testing.T) { w.survive(t, "migrate.compared", f) })
			}
		}
		w.watch.Stop()
	})
}

// usual are the faults that always happen.
var usual = map[string][]string{
	"migrate.dumped":       {"all killed"},
	"restore.post-restore": {"ssh killed"},
	"receive.promised":     {"migrate and watcher killed", "all killed"},
	"receive.say-ready":    {"nothing from the source"},
	"migrate.asked":        {"lossy link"},
	"migrate.ready":        {"source without power"},
	"dump.decided":         {"migrate killed"},
	"restore.decided":      {"receive and watcher killed"},
}

// asked reports whether a fault is to happen at a point.
func asked(point string, f fault) bool {
	switch only := os.Getenv(faultsVariable); only {
	case "all":
		return true
	case "quick":
		return !f.slow
	case "":
		return slices.Contains(usual[point], f.name)
	default:
		return strings.Contains(only, f.name)
	}
}

// survive lets a fault happen at a point, and fails the test unless one copy goes on.
func (w *world) survive(t *testing.T, point string, f fault) {
	begun := time.Now()
	from, to := w.from, w.to
	hasty := f.slow && !f.harmless
	w.hasten(hasty)
	m := w.begin(t, point, "")
	reached := m.reached()
	for try := 0; !reached && try < 2; try++ { // a busy machine is silent for as long as that
		t.Logf("the migration ended before %s: %v\n%s", point, m.err, m.out.String())
		m.goOn() // whoever comes there later
		w.settle(t, point, fault{}, from, to)
		if w.soaks {
			return
		}
		from, to = w.from, w.to
		w.hasten(false)
		m = w.begin(t, point, "")
		reached = m.reached()
	}
	if !reached {
		t.Fatalf("the migration ended before %s: %v", point, m.err)
	}
	f.do(t, w)
	m.goOn()
	status := -1
	if !f.off || f.name != "source without power" {
		status = m.status()
	} else {
		_ = m.cmd.Cancel()
		<-m.ended
	}
	took := time.Since(begun)
	at := w.settle(t, point, f, from, to)
	t.Logf("exit status %d after %v, the job is on host %s (from %s), after %v\n%s", status, took.Round(time.Millisecond), at.Name, from.Name, time.Since(begun).Round(time.Millisecond), m.out.String())
	switch {
	case status == 0 && at != to:
		t.Errorf("exit status 0, but the job is on host %s", at.Name)
	case (status == 1 || status == 3 || status > 128) && at != from:
		t.Errorf("exit status %d, but the job is on host %s", status, at.Name)
	case f.harmless && status != 0:
		t.Errorf("exit status %d", status)
	case slices.Contains(beforeDecision, point) && !f.harmless && !f.off && !f.slow && at != from && status != 0:
		t.Errorf("the job is on host %s", at.Name)
	case slices.Contains(afterDecision, point) && at != to && !f.off:
		t.Errorf("the job is on host %s", at.Name)
	}
	if status > 0 && f.cause != "" && !regexp.MustCompile(f.cause).MatchString(m.out.String()) {
		t.Errorf("the error does not name the cause, %s", f.cause)
	}
}

// settle lets everybody finish after a fault, and returns where the job is.
func (w *world) settle(t *testing.T, point string, f fault, from, to *hosts.Host) *hosts.Host {
	t.Helper()
	switch f.name {
	case "source without power":
		from.Boot()
		testenv.Eventually(t, testenv.Soon, "receive has noticed", func() bool { return len(receives(to)) == 0 })
		switch id := held(t, to); {
		case id != "": // it has promised, and nobody can tell it
			to.Run("cucriu", "recover", "--take", id)
		case slices.Contains(beforeDecision, point):
			w.lost(t)
			return from
		}
	case "destination without power":
		to.Boot()
	default:
		w.Heal()
	}
	at := w.end(t)
	if at != nil && f.off {
		w.work.Is(at)
		killAny(w.work.All(at)) // a host that has booted has other processes with its pids
		w.fresh()
		return at
	}
	if at == nil && f.name == "destination without power" && !slices.Contains(beforeDecision, point) {
		w.fresh() // it had the job
		return to
	}
	if at == nil {
		t.Fatal("the job is lost")
	}
	w.is(at)
	return at
}

// lost checks that nothing is left of a job whose host has lost its power, and starts another.
func (w *world) lost(t *testing.T) {
	t.Helper()
	if at := w.end(t); at != nil {
		t.Errorf("there is a copy of the job on host %s, which was destroyed", at.Name)
	}
	w.fresh()
}
