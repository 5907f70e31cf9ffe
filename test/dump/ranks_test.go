package dump

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestRanksOfWhichSomeRunAheadAreDumped: only rank 0 synchronizes, and each other rank is
// ahead of it by a different number of steps.
func TestRanksOfWhichSomeRunAheadAreDumped(t *testing.T) {
	testenv.Parallel(t)
	for _, ranks := range []int{2, 3, 4} {
		t.Run(fmt.Sprint(ranks, " ranks"), func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				if testenv.RealDriver() && ranks > 2 {
					t.Skip("needs a GPU for each rank: kernels of two restored processes that wait for one another on one GPU hang (measured, driver 580)")
				}
				host := testenv.NewHost(t, 2)
				host.Setenv("CUCRIU_CONFIG", host.Config(testenv.Patient))
				job := host.Start(ranks, "--ranks", strconv.Itoa(ranks), "--ahead", "--gpus", "0,1", "--tick-ms", strconv.Itoa(20*ranks), "--busy-ms", "5", "--mib", "1")
				suspend := []string{"suspend"}
				for i := range ranks {
					suspend = append(suspend, "-p", strconv.Itoa(job.MustStatus(i).PID))
				}
				if out, err := host.Cucriu(suspend...); err != nil {
					t.Fatalf("cucriu suspend: %v\n%s", err, out)
				}
				if out, err := host.Cucriu("resume", suspend[1], suspend[2]); err != nil {
					t.Fatalf("cucriu resume: %v\n%s", err, out)
				}
				job.Runs()
				host.Restore(host.Dump(job))
				job.Runs()
			})
		})
	}
}

// TestARankWhoseWorkNeverEndsIsNamed, and no other rank is: the others were locked while it
// was not. One that is further on than it could not be, because it waits for it. All of them run on.
func TestARankWhoseWorkNeverEndsIsNamed(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nlock: {timeout: 10s, try: 200ms}\n"))
		job := host.Start(3, "--ranks", "3", "--ahead", "--hog-rank", "2", "--gpus", "0,1", "--tick-ms", "20", "--mib", "1")
		testenv.Eventually(t, testenv.Soon, "rank 2 is far ahead of rank 1", func() bool { ticks := job.Ticks(); return ticks[2] > ticks[1]+50 })
		run := host.TryDump(job, t.TempDir())
		if run.Err == nil || !strings.Contains(run.Log, "lock.timeout (10s") {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		for i := range job.Dirs {
			if named := strings.Contains(run.Log, fmt.Sprintf("process %d (cudawork)", job.MustStatus(i).PID)); named != (i == 2) {
				t.Errorf("rank %d is named: %v\n%s", i, named, run.Lines())
			}
		}
		job.Runs()
	})
}
