package migrate

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// TestNoMoveLosesAJob: jobs move there and back, and something goes wrong each time, as the seed says.
func TestNoMoveLosesAJob(t *testing.T) {
	testenv.Parallel(t)
	length, seed, asked := testenv.Soak(t, 5*time.Second)
	for i, job := range []string{"cuda", "tree", "long"} {
		t.Run(job, func(t *testing.T) {
			testenv.IsolatedFor(t, length+10*time.Minute, func(t *testing.T) {
				counts := make(map[string]int)
				defer func() { testenv.SoakDone(t, counts) }()
				random := rand.New(rand.NewPCG(seed, uint64(i)))
				var act func() string
				var stop func()
				if job == "long" {
					p := hosts.New(t, hosts.Options{OneBootID: true})
					from, to := p.A, p.B
					j := startJob(t, p, from)
					j.soaks = true
					stop = j.watch()
					act = func() string {
						s := jobSteps[random.IntN(len(jobSteps))]
						from, to = j.killedAt(from, to, s)
						return s.step + " killed"
					}
				} else {
					w := newWorld(t, job)
					w.soaks = true
					points := slices.Concat(beforeDecision, promised, afterDecision)
					some := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.slow && !asked })
					stop = func() { w.watch.Stop() }
					act = func() string {
						point, f := points[random.IntN(len(points))], some[random.IntN(len(some))]
						t.Run(point+"/"+strings.ReplaceAll(f.name, " ", "-"), func(t *testing.T) { w.survive(t, point, f) })
						return f.name
					}
				}
				for until := time.Now().Add(length); time.Now().Before(until) && !t.Failed(); {
					counts[act()]++
				}
				stop()
			})
		})
	}
}
