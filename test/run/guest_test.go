package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/guest"
	"cucriu/internal/testenv"
)

// TestAJobOnTwoGPUsHasTheGuest: without it the driver would restore none of its checkpoints. The job keeps the library with
// which it was started. The first checkpoint is tried beside the job, which has a socket of the library by then.
func TestAJobOnTwoGPUsHasTheGuest(t *testing.T) {
	testenv.Parallel(t)
	for memory, options := range map[string][]string{"vmm": nil, "alloc": {"--ipc-handles"}} {
		t.Run(memory, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := worldOn(t, testenv.NewHost(t, 2, "--mib-per-gpu", "200", "--peer-limit-mib", "8"))
				w.command = append([]string{testenv.Artefact(t, "make workload", "build", "workload", "cudawork"), "--dir", w.work, "--gpus", "0,1", "--peer", "both", "--memory", memory, "--mib", "16"}, options...)
				w.cuda = w.work
				r := w.run()
				r.says("LD_PRELOAD=" + filepath.Join(w.dir, guest.File) + " is set")
				r.verified(1)
				r.killsAll()
				newest := w.newest()
				before, err := os.Stat(filepath.Join(w.dir, guest.File))
				must(t, err)
				r = w.run()
				r.resumed(newest)
				w.ticks(3)
				w.checks()
				if after, err := os.Stat(filepath.Join(w.dir, guest.File)); err != nil || !os.SameFile(before, after) {
					t.Errorf("the library was replaced: %v", err)
				}
				r.kill()
			})
		})
	}
}

// TestTheGuestIsLeftOut where it was never tried.
func TestTheGuestIsLeftOut(t *testing.T) {
	testenv.Parallel(t)
	for name, host := range map[string]struct {
		args []string
		gpus int
		says string
	}{
		"another driver": {[]string{"--driver", "570"}, 2, "--guest is left out: it was not tried with the driver 570"},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := worldOn(t, testenv.NewHost(t, host.gpus, host.args...))
				w.command = []string{"sh", "-c", `echo "<$LD_PRELOAD>"`}
				r := w.run()
				<-r.done
				output, err := os.ReadFile(filepath.Join(w.dir, "output.log"))
				must(t, err)
				if string(output) != "<>\n" || !strings.Contains(r.said(), host.says) || host.says == "" && strings.Contains(r.said(), "guest") {
					t.Errorf("the job has written %q; cucriu run says\n%s", output, r.said())
				}
			})
		})
	}
}
