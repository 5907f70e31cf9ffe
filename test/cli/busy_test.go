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

// TestATimeoutOfTheDriverNamesTheSetting that is to be raised, and nothing else is to be done.
func TestATimeoutOfTheDriverNamesTheSetting(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		const text = "version: 1\nlock: {timeout: 60s}\n"
		b.Faults("checkpoint delay 3s", "restore delay 3s")
		fails := func(setting string, args ...string) {
			t.Helper()
			b.Setenv("CUCRIU_CONFIG", b.Config(text+setting+": {timeout: 1s}\n"))
			says := " of process " + b.job.Root() + " did not end in time: " + setting + ".timeout is 1s: raise it; the "
			if _, stderr, status := b.run(t, args...); status != 1 || !strings.Contains(stderr, says) {
				t.Errorf("exit status %d, want one that says %q\n%s", status, says, stderr)
			}
		}
		fails("checkpoint", "dump", "-t", b.job.Root(), "-D", "images")
		fails("checkpoint", "suspend", "-p", b.job.Root())
		b.Setenv("CUCRIU_CONFIG", b.Config(text))
		b.dumped(t, b.job)
		fails("restore", "restore", "-D", "images")
		testenv.Eventually(t, testenv.Soon, "the restored processes are reaped", b.job.Gone)
		b.Setenv("CUCRIU_CONFIG", b.Config(text))
		if stdout, stderr, status := b.run(t, "restore", "-D", "images"); status != 0 {
			t.Errorf("exit status %d\n%s%s", status, stdout, stderr)
		}
		b.job.Runs()
	})
}
