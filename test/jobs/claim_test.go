package jobs

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// TestAProcessHasOneSessionWhoeverLooks: the sandbox of a long job has a run directory of its own, and
// another pid for the process.
func TestAProcessHasOneSessionWhoeverLooks(t *testing.T) {
	testenv.Parallel(t)
	const conflict = "in another pid namespace"
	for _, test := range []struct{ name, point, first, second string }{
		{"a checkpoint is made", "dump.lock", "jobs checkpoint", "suspend"},
		{"the host suspends", "suspend.lock", "suspend", "jobs checkpoint"},
	} {
		t.Run(test.name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				marks := t.TempDir()
				wait := testenv.WaitsForGo(t, marks)
				host := testenv.NewHost(t, 1)
				host.UseFailpoint(test.point + "=run " + wait)
				second := host.For(t)
				second.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nlock: {timeout: 4s, try: 1s}\n")) // for so long it waits for the first
				supervisor, beside := host, second
				if test.first == "suspend" {
					supervisor, beside = second, host
				}
				a := newAskedOn(t, supervisor, "")
				a.Host = beside
				tree, err := proc.Tree(a.placeInits()[0])
				if err != nil || len(tree) < 3 {
					t.Fatal(tree, err)
				}
				root := strconv.Itoa(tree[2]) // below the sandbox's first process and the job's
				command := map[string]func() *exec.Cmd{
					"jobs checkpoint": func() *exec.Cmd { return a.CucriuCommand("jobs", "checkpoint", "train") },
					"suspend":         func() *exec.Cmd { return a.suspend(root) },
				}
				first := command[test.first]()
				if err := first.Start(); err != nil {
					t.Fatal(err)
				}
				testenv.Eventually(t, testenv.Soon, "the first has begun", func() bool { return testenv.Exists(filepath.Join(marks, "reached")) })
				if out, err := command[test.second]().CombinedOutput(); err == nil || !strings.Contains(string(out), conflict) {
					t.Fatalf("%v, want %q in\n%s", err, conflict, out)
				}
				testenv.WriteFile(t, filepath.Join(marks, "go"), "")
				if err := first.Wait(); err != nil {
					t.Fatal(err)
				}
				if test.first == "suspend" {
					a.cucriu(3, "resume it with cucriu resume -p "+root, "jobs", "checkpoint", "train")
					a.cucriu(0, "", "resume", "-p", root)
				} else {
					a.cucriu(0, "", "jobs", "pause", "train")
					a.cucriu(3, "belongs to the paused long job train: cucriu jobs resume train", "resume", "-p", root)
					a.cucriu(0, "", "jobs", "resume", "train")
				}
				a.job.WaitTicks(3)
			})
		})
	}
}
