package faults

import (
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestABorrowedThreadWaitsIfItsBorrowerIsKilled: between two calls the thread must not run
// on behind the first one, even if a SIGCONT has ended its group-stop. (In the middle of a
// call nothing can prevent that.)
func TestABorrowedThreadWaitsIfItsBorrowerIsKilled(t *testing.T) {
	if testenv.RealDriver() {
		t.Skip("needs the fault injection of the simulated driver's host")
	}
	for _, point := range []string{"dump.prefault", "dump.dropping", "dump.inaccessible", "restore.back.accessible"} {
		t.Run(point, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(1, "--mib", "20", "--spin", "event-sync")
				failing := host.For(t)
				failing.UseFailpoint(point + "=continue " + job.Root() + "+kill")
				marks := t.TempDir()
				failing.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
				if strings.HasPrefix(point, "dump.") {
					if run := failing.TryDump(job, filepath.Join(t.TempDir(), "images")); run.Err == nil {
						t.Fatal("the dump did not fail")
					}
				} else {
					failing.TryRestore(host.Dump(job))
				}
				if !testenv.Exists(filepath.Join(marks, point)) {
					t.Fatal("the fault did not happen")
				}
				host.WaitOutcome("running")
				job.Runs()
			})
		})
	}
}
