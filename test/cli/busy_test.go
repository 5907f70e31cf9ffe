package cli

import (
	"strings"
	"testing"
	"time"

	"cucriu/internal/testenv"
)

// TestADriverAtWorkIsNotAsked: while a dump waits for it, status and state say at once whose dump that is.
func TestADriverAtWorkIsNotAsked(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		b.Faults("checkpoint hang")
		dump, output := b.start(t, "dump", "-t", b.job.Root(), "-D", "images")
		testenv.Eventually(t, testenv.Soon, "the driver checkpoints", atStepOf(b, "checkpoint"))
		says := "is being dumped by process " + b.started
		for _, args := range [][]string{{"status", "--json"}, {"state", "-p", b.job.Root(), "--json"}} {
			begun := time.Now()
			stdout, stderr, status := b.run(t, args...)
			if status != 0 || !strings.Contains(stdout, says) || strings.Contains(stdout, "cuCheckpoint") || time.Since(begun) > 4*time.Second {
				t.Errorf("%q after %v: exit status %d\n%s%s", args, time.Since(begun), status, stdout, stderr)
			}
		}
		b.Faults()
		if err := dump.Wait(); err != nil {
			t.Errorf("%v\n%s", err, output)
		}
	})
}
