package jobs

import (
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/inside"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// TestAPauseThatIsCutOff is undone, or made whole by the next supervisor: the job never stays
// half paused. The program in the place undoes the pause if it outlives the supervisor, so it must
// end before that where both are killed.
func TestAPauseThatIsCutOff(t *testing.T) {
	testenv.Parallel(t)
	for name, test := range map[string]struct {
		killInside bool
		want       string
	}{
		"the supervisor is killed":                      {false, "running"},
		"the supervisor and its program in the sandbox": {true, "paused"},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				a := newAsked(t)
				a.Faults("checkpoint delay 15s skip 1") // the first is for the checkpoint
				pause := a.CucriuCommand("jobs", "pause", "train")
				if err := pause.Start(); err != nil {
					t.Fatal(err)
				}
				testenv.Eventually(t, testenv.Soon, "the pause has begun", func() bool {
					found, _ := filepath.Glob(filepath.Join(a.RunDir, "jobs", "*", "run", "paused.json"))
					return len(found) > 0
				})
				if test.killInside {
					_ = a.super.Process.Signal(unix.SIGSTOP) // it notices nothing
					testenv.Eventually(t, testenv.Soon, "the supervisor is stopped", func() bool {
						stopped, err := proc.Stopped(a.super.Process.Pid)
						return err == nil && stopped
					})
					for _, pid := range running(inside.Command) {
						_ = unix.Kill(pid, unix.SIGKILL)
					}
					testenv.Eventually(t, testenv.Soon, "the program in the sandbox has ended", func() bool {
						return len(testenv.NotEnding(running(inside.Command))) == 0
					})
				}
				_ = a.super.Process.Kill()
				_ = a.super.Wait()
				if err := pause.Wait(); err == nil {
					t.Error("cucriu jobs pause has not noticed")
				}
				a.Faults()
				a.run()
				a.is(test.want)
				if test.want == "paused" {
					a.standsStill()
					a.cucriu(0, "", "jobs", "resume", "train")
				}
				a.job.Runs()
				a.cucriu(0, "checkpoint 000002", "jobs", "checkpoint", "train")
				a.finish()
			})
		})
	}
}

// running returns the processes with this argument.
func running(argument string) (pids []int) {
	for _, pid := range testenv.PIDs() {
		if pid > 1 && slices.Contains(testenv.CommandLine(pid), argument) {
			pids = append(pids, pid)
		}
	}
	return pids
}
