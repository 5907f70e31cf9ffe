package dump

import (
	"slices"
	"strings"
	"testing"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// TestHundredsOfBusyThreadsAreDumped although the deadline is meant for a process with few
// threads: waiting for many threads, or for a CPU beside them, gets more time.
func TestHundredsOfBusyThreadsAreDumped(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nlock: {timeout: 100ms, try: 100ms}\n"))
		job := host.Start(1, "--burn", "300")
		host.Restore(host.Dump(job))
		job.Runs()
	})
}

// TestADumpThatLeavesStoppedReturnsWhenEverythingStandsStill and stays so.
func TestADumpThatLeavesStoppedReturnsWhenEverythingStandsStill(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.StartUnder([]string{"/bin/sh", "-c", `(while :; do :; done) & "$@"; true`, "sh"}, 1, "--burn", "100", "--threads", "3")
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", testenv.NewImages(t), "-s")
		before := job.Ticks()
		for range 20 {
			pids, err := proc.Tree(job.PID)
			if err != nil {
				t.Fatal(err)
			}
			for _, pid := range pids {
				if states, err := proc.ThreadStates(pid); err != nil || strings.Trim(states, "T") != "" {
					t.Fatalf("process %d has threads in the states %s: %v", pid, states, err)
				}
			}
		}
		if after := job.Ticks(); !slices.Equal(before, after) {
			t.Errorf("the job went from tick %v to %v", before, after)
		}
		if got := host.LastOutcome(); got != "stopped" {
			t.Errorf("outcome %q", got)
		}
	})
}
