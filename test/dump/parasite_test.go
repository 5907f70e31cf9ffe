package dump

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestCriuIsKilledWhileItsCodeIsInTheJob: the thread that runs criu's code is not where it
// was parked, and would return there from criu's code.
func TestCriuIsKilledWhileItsCodeIsInTheJob(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--spin", "event-sync", "--threads", "3")
		for killed := 0; killed < 5; { // whether the thread is caught there is a race
			if killedInTheJob(t, host, job) {
				killed++
			}
			host.WaitOutcome("running")
			job.Runs()
		}
		host.Restore(host.Dump(job))
		job.Runs()
	})
}

// killedInTheJob kills criu while the job's first thread waits in criu's code, and reports
// whether it caught the thread there.
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
	for {
		select {
		case <-done:
			return false
		default:
		}
		if !waitsInCriusCode(job.PID) {
			continue
		}
		_ = dump.Process.Signal(unix.SIGSTOP)
		if waitsInCriusCode(job.PID) {
			_ = dump.Process.Kill()
			<-done
			return true
		}
		_ = dump.Process.Signal(unix.SIGCONT)
	}
}

// waitsInCriusCode reports whether the first thread of a process is in a system call made
// by criu's code.
func waitsInCriusCode(pid int) bool {
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	call, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
	fields := strings.Fields(string(call))
	if len(fields) < 9 { // it runs, or is stopped
		return false
	}
	var pc, start, end uint64
	if _, err := fmt.Sscanf(fields[8], "0x%x", &pc); err != nil {
		return false
	}
	for line := range strings.Lines(string(maps)) {
		if _, err := fmt.Sscanf(line, "%x-%x", &start, &end); err == nil && strings.Contains(line, "CRIUMFD") && start <= pc && pc < end {
			return true
		}
	}
	return false
}
