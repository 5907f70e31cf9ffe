package long

import (
	"testing"
	"time"

	"cucriu/internal/testenv"
)

// TestAProcessThatIsKilledUnderCriuHangsNobody: criu waits for ever for such a process.
func TestAProcessThatIsKilledUnderCriuHangsNobody(t *testing.T) {
	simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		r := w.run()
		r.verified(1)
		for i := range 5 {
			r.awaits("criu is at work", func() bool { return len(w.victims(criuKilled)) > 0 })
			time.Sleep(time.Duration(i*25) * time.Millisecond)
			w.kills(rootKilled)
			select {
			case <-r.done:
			case <-time.After(2 * testenv.Soon):
				t.Fatalf("round %d: cucriu run does not end", i)
			}
			r = w.run()
			r.says("D goes on from checkpoint")
		}
		w.finish(r)
	})
}
