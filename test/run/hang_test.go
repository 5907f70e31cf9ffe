package run

import (
	"regexp"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs"
	"cucriu/internal/testenv"
)

// TestAProcessThatIsKilledUnderCriuHangsNobody: criu may wait for ever for such a process. The kernel kills the command, when memory runs out.
func TestAProcessThatIsKilledUnderCriuHangsNobody(t *testing.T) {
	testenv.Parallel(t)
	for _, killed := range []who{rootKilled, commandKilled} {
		t.Run(string(killed), func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newMixedWorld(t)
				r := w.run()
				r.verified(1)
				for i := range 5 {
					r.awaits("criu is at work", func() bool { return len(w.victims(criuKilled)) > 0 })
					time.Sleep(time.Duration(i*25) * time.Millisecond)
					w.kills(killed)
					select {
					case <-r.done:
					case <-time.After(2 * testenv.Soon):
						t.Fatalf("round %d: cucriu run does not end", i)
					}
					r = w.run()
					r.says("D resumes from checkpoint")
				}
				w.finish(r)
			})
		})
	}
}

// TestAJobThatIsKilledUnderItsLastCheckpointHangsNobody, although that ends the job by itself. What
// waits for the job for ever is ours here, and not criu.
func TestAJobThatIsKilledUnderItsLastCheckpointHangsNobody(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		s := w.stopAt("dump.inspect")
		r := w.runAs(s.host)
		w.ticks(3)
		r.signal(unix.SIGTERM)
		s.await(r)
		w.kills(rootKilled)
		r.ends(requeue, "both are being killed")
		s.goOn()
		w.finish(w.run())
	})
}

// TestAHangIsTold after a minute, which is a tenth of that here, with what waits for what, and the checkpoint comes all the same.
func TestAHangIsTold(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run("--every", "0")
		w.ticks(1)
		r.kill()
		s := w.stopAt("jobs.dumped")
		s.host.Setenv("CUCRIU_FAILPOINT_HASTE", "10")
		r = w.runAs(s.host)
		s.await(r)
		tells := regexp.MustCompile(`^D: the dump has not ended after (\S+): .* is waiting in `)
		var e jobs.Event
		testenv.Eventually(t, 2*testenv.Soon, "it is told", func() bool { // other things may be slow before, and the dump at work
			e, _ = w.last(jobs.EventWaiting)
			return tells.MatchString(e.Message)
		})
		if d, err := time.ParseDuration(tells.FindStringSubmatch(e.Message)[1]); err != nil || d < 6*time.Second {
			t.Errorf("the log says %q", e.Message)
		}
		r.says(e.Message)
		s.goOn()
		r.verified(1)
		w.finish(r)
	})
}
