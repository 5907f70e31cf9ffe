package restore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// goCriu runs the example program, which drives criu with go-criu's own client.
func goCriu(t *testing.T, host *testenv.Host, args ...string) (string, error) {
	t.Helper()
	out, err := host.Command(testenv.Artefact(t, "make build", "build", "test", "gocriu"), args...).CombinedOutput()
	log, _ := os.ReadFile(filepath.Join(args[len(args)-1], args[0]+".log"))
	return string(out) + string(log), err
}

func TestNotifyDumpsAndRestores(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(2, "--procs", "2", "--spin", "stream-sync")
		images := t.TempDir()
		if out, err := goCriu(t, host, "dump", job.Root(), images); err != nil {
			t.Fatalf("dump: %v\n%s", err, out)
		}
		host.WaitOutcome("dumped")
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		if out, err := goCriu(t, host, "restore", images); err != nil {
			t.Fatalf("restore: %v\n%s", err, out)
		}
		job.Runs()
		if got := host.RestoreOutcome(); got != "running" {
			t.Errorf("outcome %q", got)
		}
	})
}

func TestNotifyBringsTheJobBackWhenTheDumpFails(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.StartUnder([]string{"/bin/sh", "-c", `gone=$(mktemp) && exec 3>"$gone"; rm "$gone"; head -c 3000000 /dev/zero >&3; "$@" & wait`, "sh"}, 1)
		if out, err := goCriu(t, host, "dump", job.Root(), t.TempDir()); err == nil {
			t.Fatalf("criu dumped a file that is too large:\n%s", out)
		}
		host.WaitOutcome("running")
		job.Runs()
	})
}

func TestNotifyEndsAJobWhoseGPUStateCannotBeRestored(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := host.Dump(job)
		host.Faults("restore return 999")
		if out, err := goCriu(t, host, "restore", images); err == nil || !strings.Contains(out, "999") {
			t.Fatalf("restore: %v\n%s", err, out)
		}
		testenv.Eventually(t, testenv.Soon, "the job is ended", job.Gone)
		host.Faults("")
		if out, err := goCriu(t, host, "restore", images); err != nil {
			t.Fatalf("restore: %v\n%s", err, out)
		}
		job.Runs()
	})
}
