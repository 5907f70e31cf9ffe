package restore

import (
	"fmt"
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
		restore := host.CucriuCommand("restore", "-D", dir)
		// Its pid is the first after this number, and the next are its threads'.
		script := fmt.Sprintf(`echo %d >/proc/sys/kernel/ns_last_pid; "$0" "$@"`, job.PID-4)
		sh := host.Command("sh", append([]string{"-c", script, restore.Path}, restore.Args[1:]...)...)
		out, err := sh.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "starts again with others") {
			t.Fatalf("%v: %s", err, out)
		}
		job.Runs()
	})
}
