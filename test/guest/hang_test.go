package guest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// TestADriverCallHangs in one of two processes. Once the dump has given up on it, the job runs while the call still
// hangs, unless GPU state is out: only that process cannot use its GPUs, and the error says so.
func TestADriverCallHangs(t *testing.T) {
	testenv.Parallel(t)
	const (
		locked  = "cannot use its GPUs until the driver answers: cuCheckpointProcess"
		stopped = "stays stopped until the driver answers: cuCheckpointProcess"
	)
	for name, test := range map[string]struct {
		guest       bool
		point, call string // what happens from that point on
		goesOn      bool   // the dump is to leave the job running (-R): it succeeds, and is rolled back
		says        string
	}{
		"first lock":                   {false, "dump.lock", "lock hang", false, locked},
		"first lock with closed gates": {true, "dump.lock", "lock hang", false, locked},
		"lock of a stopped process":    {true, "dump.move", "lock hang", false, locked},
		"unlock of a stopped process":  {true, "dump.move", "unlock hang", false, locked},
		"lock that sticks":             {true, "dump.move", "lock stick", false, locked},
		"lock of an emptied process":   {true, "dump.moved", "lock hang", false, stopped},
		"checkpoint":                   {false, "dump.checkpoint", "checkpoint hang", false, stopped},
		"restore when rolled back":     {false, "dump.dumped", "restore hang", true, stopped},
		"unlock when rolled back":      {false, "dump.dumped", "unlock hang", true, locked},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1, "--mib-per-gpu", "200")
				const timeouts = "lock: {timeout: 20s, try: 2s}\ncheckpoint: {timeout: 5s}\nrestore: {timeout: 5s}\n"
				host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\n"+timeouts))
				under := []string{"/bin/sh", "-c", `"$@" & wait`, "sh"} // a process without CUDA above the others, too
				if test.guest {
					under = []string{"/bin/sh", "-c", `LD_PRELOAD=$0 "$@" & wait`, testenv.Guest(t)}
				}
				job := host.StartUnder(under, 2, "--procs", "2", "--loaders", "1", "--mib", "32")
				args := map[bool][]string{true: {"-R"}}[test.goesOn]
				d := dumpUntil(t, host, job, test.point, args...)
				host.Faults(test.call + " times 1")
				if err := os.WriteFile(filepath.Join(d.marks, "go"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := <-d.ended; (err == nil) != test.goesOn {
					t.Fatalf("criu dump: %v", err)
				}
				testenv.Eventually(t, testenv.Soon, "the job runs, or is stopped, while the call hangs", func() bool {
					return countStopped(t, job) == map[string]int{locked: 0, stopped: 6}[test.says]
				})
				if test.says == locked {
					before := job.Ticks()
					testenv.Eventually(t, testenv.Soon, "the other process uses its GPU", func() bool {
						now := job.Ticks()
						return now[0] > before[0]+3 || now[1] > before[1]+3
					})
				}
				testenv.Eventually(t, testenv.Soon, "the session says what it waits for", func() bool {
					sessions := host.Sessions()
					return strings.Contains(sessions[len(sessions)-1].Message, test.says)
				})
				host.Faults()
				host.WaitOutcome("running")
				job.Runs()
				job.Check()
			})
		})
	}
}

// countStopped returns how many processes of a job are stopped.
func countStopped(t *testing.T, job *testenv.Job) (n int) {
	t.Helper()
	pids, err := proc.Tree(job.PID)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if states, err := proc.ThreadStates(pid); err == nil && !strings.ContainsAny(states, "RSD") {
			n++
		}
	}
	return n
}
