package jobs

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// suspend is a program that suspends a process of the job, which cucriu suspend refuses.
func (a *asked) suspend(pid string) *exec.Cmd {
	a.t.Helper()
	return a.Command(testenv.Artefact(a.t, "make build", "build", "test", "embed"), "suspend", pid)
}

func (a *asked) suspends(pid string) {
	a.t.Helper()
	if out, err := a.suspend(pid).CombinedOutput(); err != nil {
		a.t.Fatalf("suspend: %v\n%s", err, out)
	}
}

// TestASuspendedJobLosesNothing: a stop and a preemption resume what another program has suspended, and make the last
// checkpoint. What else is asked of the job says how it is resumed.
func TestASuspendedJobLosesNothing(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAsked(t)
		a.cucriu(0, "checkpoint 000001", "jobs", "checkpoint", "train") // which a forked loader needs to have seen
		for i, leave := range []func(){
			func() { a.cucriu(0, "checkpoint 000002", "jobs", "stop", "train") },
			func() {
				if err := a.super.Process.Signal(unix.SIGTERM); err != nil {
					t.Fatal(err)
				}
			},
		} {
			pid := strconv.Itoa(a.cudaPID())
			a.suspends(pid)
			a.is("suspended")
			remedy := "resume it with cucriu resume -p " + pid
			a.cucriu(3, remedy, "jobs", "checkpoint", "train")
			a.cucriu(3, remedy, "jobs", "pause", "train")
			a.cucriu(3, "train is not paused: process "+pid+" was suspended at ", "jobs", "resume", "train")
			leave()
			a.ends(85)
			if n := len(a.checkpoints()); n != i+2 || !strings.Contains(a.said.String(), "train was suspended, and was resumed for its last checkpoint") {
				t.Fatalf("%d checkpoints\n%s", n, a.said)
			}
			a.run()
			a.job.WaitTicks(3)
		}
		a.finish()
	})
}
