package e2e

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestCriuIsKilledWhileItsCodeIsInTheJob: the thread that runs it is not where it was
// parked, and would go back there from criu's code.
func TestCriuIsKilledWhileItsCodeIsInTheJob(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--spin", "event-sync", "--threads", "3")
		for !killedInTheJob(t, host, job) {
			host.WaitOutcome("running")
			job.Runs()
		}
		host.WaitOutcome("running")
		job.Runs()
		host.Restore(host.Dump(job))
		job.Runs()
	})
}

// killedInTheJob kills criu while its code is in the job, and reports whether it was
// caught at that.
func killedInTheJob(t *testing.T, host *testenv.Host, job *testenv.Job) bool {
	dump := host.CriuCommand("dump", t.TempDir(), "-t", job.Root(), "--leave-running")
	if err := dump.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = dump.Wait()
	}()
	inJob := func() bool {
		maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", job.PID))
		return bytes.Contains(maps, []byte("CRIUMFD"))
	}
	for !inJob() {
		select {
		case <-done:
			return false
		default:
		}
	}
	_ = dump.Process.Signal(unix.SIGSTOP)
	caught := inJob()
	_ = dump.Process.Kill()
	<-done
	return caught
}
