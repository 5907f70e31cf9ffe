package migrate

import (
	"os"
	"strconv"
	"testing"
	"time"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// movesVariable says how often jobs move there and back: 20 moves are 10 there and 10 back.
const movesVariable = "CUCRIU_MIGRATE_MOVES"

func movesOr(t *testing.T, usual int) int {
	t.Helper()
	text := os.Getenv(movesVariable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 2 || n%2 != 0 {
		t.Fatalf("%s=%s is not an even number", movesVariable, text)
	}
	return n
}

// cpuTree is a job without CUDA: a parent and two children, each with memory of its own and some
// that they share, who compare what they have at each tick.
const cpuTree = `
import json, mmap, os, sys, time
dir, size = sys.argv[-1], 4 << 20
shared = mmap.mmap(-1, size)
def content(seed): return bytes((i * seed + seed) % 251 for i in range(251)) * (size // 251)
shared[:len(content(7))] = content(7)
ends = []
for seed in (3, 5):
    down, up = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(down[1]); os.close(up[0])
        own = bytearray(content(seed))
        while True:
            n = os.read(down[0], 8)
            if not n: os._exit(0)
            good = own == content(seed) and shared[:len(content(7))] == content(7)
            os.write(up[1], n if good else b"x" * 8)
    os.close(down[0]); os.close(up[1])
    ends.append((down[1], up[0]))
own, tick, bad = bytearray(content(11)), 0, 0
log = open(dir + "/log", "w+b", buffering=0)
while True:
    tick += 1
    number = tick.to_bytes(8, "little")
    for down, up in ends:
        os.write(down, number)
        bad += os.read(up, 8) != number
    log.write(number)
    bad += own != content(11) or os.fstat(log.fileno()).st_size != 8 * tick
    with open(dir + "/status.new", "w") as f: json.dump({"tick": tick, "bad": bad}, f)
    try: os.rename(dir + "/status.new", dir + "/status")
    except FileNotFoundError: pass # it was written on the other host, and nobody had it open
    if os.path.exists(dir + "/check"):
        with open(dir + "/checked", "w") as f: json.dump({"bad": bad, "words": 1}, f)
        os.remove(dir + "/check")
    time.sleep(0.02)
`

// TestThereAndBack: a job can move as often as one likes. Its data stays intact, and neither host
// nor the job keeps anything of it.
func TestThereAndBack(t *testing.T) {
	testenv.Parallel(t)
	for name, job := range map[string]struct {
		moves int
		start func(*hosts.Host) *hosts.Job
	}{
		"cuda": {4, func(h *hosts.Host) *hosts.Job {
			return h.Start(2, "--procs", "2", "--mib", "16", "--loaders", "2")
		}},
		"sharing": {2, func(h *hosts.Host) *hosts.Job {
			return h.StartUnder(testenv.WithGuest(t), 2, "--ranks", "2", "--mesh", "2")
		}},
		"cpu": {2, func(h *hosts.Host) *hosts.Job { return h.StartProgram("python3", "-c", cpuTree) }},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				p := hosts.New(t, hosts.Options{})
				from, to := p.A, p.B
				w := job.start(from)
				w.WaitTicks(from, 3)
				begin, has := map[*hosts.Host]traces{from: tracesOn(t, w, from), to: tracesOn(t, w, to)}, belongingsOf(w, from, nil)
				w.WaitTicks(from, 3)
				has = belongingsOf(w, from, has) // without what was there for a tick only
				with, without := begin[from].GPUs, begin[to].GPUs
				watch := w.Watch()
				begun := time.Now()
				moves := movesOr(t, job.moves)
				for range moves {
					move(t, w, from, to)
					settled(t, "what the job has", has, func() belongings { return belongingsOf(w, to, has) })
					from, to = to, from
					for h, gpus := range map[*hosts.Host][]uint64{from: with, to: without} {
						want := begin[h]
						want.GPUs = gpus
						settled(t, "host "+h.Name, want, func() traces { return tracesOn(t, w, h) })
					}
				}
				watch.Stop()
				t.Logf("%d moves in %v", moves, time.Since(begun).Round(time.Millisecond))
			})
		})
	}
}
