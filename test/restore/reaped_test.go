package restore

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// lazyParent starts its arguments, says their pid, and reaps them when its standard input ends.
const lazyParent = `
import os, sys
child = os.fork()
if child == 0:
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3): os.dup2(null, fd)
    os.setsid()
    os.execv(sys.argv[1], sys.argv[1:])
print(child, flush=True)
sys.stdin.read()
os.waitpid(child, 0)
`

// unreaped dumps a job that ends with that, and whose parent reaps it only when told.
func unreaped(t *testing.T, host *testenv.Host) (job *testenv.Job, parent int, reap func(), images string) {
	t.Helper()
	var told io.WriteCloser
	job = host.StartWith(func(command []string) int {
		cmd := exec.Command("/usr/bin/python3", append([]string{"-c", lazyParent}, command...)...)
		cmd.Env = host.Command("true").Env
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		told, parent = in, cmd.Process.Pid
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}, nil, 1)
	images = testenv.NewImages(t)
	testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
	testenv.Eventually(t, testenv.Soon, "the job is a zombie", func() bool {
		status, err := proc.ReadStatus(job.PID)
		return err == nil && status.Ended
	})
	return job, parent, func() { told.Close() }, images
}

// TestARestoreWaitsForAZombie that has a pid of the image, says so, and goes on once it is reaped.
func TestARestoreWaitsForAZombie(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job, parent, reap, images := unreaped(t, host)
		waits := fmt.Sprintf("pid %d is not yet reaped by PID %d; retrying for 10s", job.PID, parent)
		start := func() (*exec.Cmd, *testenv.Output) {
			t.Helper()
			cmd, output := host.CucriuCommand("restore", "-D", images), new(testenv.Output)
			cmd.Stdout, cmd.Stderr = output, output
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, testenv.Soon, "it says that it waits", func() bool { return strings.Contains(output.String(), waits) })
			return cmd, output
		}

		cmd, output := start()
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 128+int(unix.SIGINT) {
			t.Errorf("after Ctrl-C: %v\n%s", cmd.ProcessState, output)
		}

		out := testenv.Exits(t, host, 3, "restore", "-D", images)
		refused := fmt.Sprintf("has ended, but is not yet reaped by PID %d, and has a pid that the image needs: wait, or end process %[1]d", parent)
		if strings.Count(out, waits) != 1 || !strings.Contains(out, refused) {
			t.Errorf("want %q once, and %q:\n%s", waits, refused, out)
		}

		cmd, output = start()
		reap()
		if err := cmd.Wait(); err != nil {
			t.Fatalf("restore: %v\n%s", err, output)
		}
		job.Runs()
	})
}

// TestARestoreWaitsForAPIDThatOnlyTheKernelKnows: for a moment after the end of a process its number is in
// use, although /proc does not show it any more. Here its directory is covered until then.
func TestARestoreWaitsForAPIDThatOnlyTheKernelKnows(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job, _, reap, images := unreaped(t, host)
		covered := fmt.Sprintf("/proc/%d", job.PID)
		if err := unix.Mount("none", covered, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		refused := fmt.Sprintf("the image needs pid %d, which the kernel has not freed", job.PID)
		if out := testenv.Exits(t, host, 3, "restore", "-D", images); !strings.Contains(out, refused) {
			t.Errorf("want %q:\n%s", refused, out)
		}
		cmd, output := host.CucriuCommand("restore", "-D", images), new(testenv.Output)
		cmd.Stdout, cmd.Stderr = output, output
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "it says that it waits", func() bool {
			return strings.Contains(output.String(), "the kernel has not yet freed the pids of processes that have ended")
		})
		reap() // the cover goes with it
		if err := cmd.Wait(); err != nil {
			t.Fatalf("restore: %v\n%s", err, output)
		}
		job.Runs()
	})
}
