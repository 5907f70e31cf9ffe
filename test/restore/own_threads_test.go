package restore

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestARestoreDoesNotStandInItsOwnWay: in a new pid namespace the threads of cucriu get numbers that the image
// needs. It starts again with others.
func TestARestoreDoesNotStandInItsOwnWay(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--mib", "1")
		dir := host.Dump(job)
		// Nobody else there takes a number: the first thread, which the Go runtime keeps for good, gets the job's.
		script := fmt.Sprintf(`echo %d >/proc/sys/kernel/ns_last_pid; exec "$0" "$@"`, job.PID-1)
		host.Enter = func(name string, args []string) (string, []string) {
			inside := []string{"--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script, name}
			return "unshare", slices.Concat(inside, args)
		}
		restore := host.CucriuCommand("restore", "-D", dir, "--foreground")
		said, err := os.Create(filepath.Join(t.TempDir(), "said"))
		if err != nil {
			t.Fatal(err)
		}
		defer said.Close()
		restore.Stderr = said
		if err := restore.Start(); err != nil {
			t.Fatal(err)
		}
		job.WaitTicks(3)
		_ = restore.Process.Kill()
		_ = restore.Wait()
		out, err := os.ReadFile(said.Name())
		if err != nil || !strings.Contains(string(out), "starts again with others") {
			t.Errorf("it did not start again: %v %s", err, out)
		}
	})
}
