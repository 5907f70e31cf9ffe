package long

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestAPauseThatIsCutOff is undone, or made whole by the next supervisor: the job never stays
// half paused.
func TestAPauseThatIsCutOff(t *testing.T) {
	for name, test := range map[string]struct {
		killInside bool
		want       string
	}{
		"the supervisor is killed":                    {false, "running"},
		"the supervisor and its program in the place": {true, "paused"},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T) {
				a := newAsked(t)
				a.Faults("checkpoint delay 2s skip 1") // the first is for the checkpoint
				pause := a.CucriuCommand("jobs", "pause", "train")
				if err := pause.Start(); err != nil {
					t.Fatal(err)
				}
				testenv.Eventually(t, testenv.Soon, "the pause has begun", func() bool {
					found, _ := filepath.Glob(filepath.Join(a.RunDir, "jobs", "*", "run", "paused.json"))
					return len(found) > 0
				})
				_ = a.super.Process.Kill()
				if test.killInside {
					for _, pid := range running("job-inside") {
						_ = unix.Kill(pid, unix.SIGKILL)
					}
				}
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
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		text, err := os.ReadFile(file)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && pid > 1 && bytes.Contains(text, []byte("\x00"+argument+"\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}
