package session

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"cucriu/internal/core/journal"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestNobodyEscapesFromATreeThatIsKilled by being forked while the tree is walked.
func TestNobodyEscapesFromATreeThatIsKilled(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) { // sees no other processes
		children := func() (pids []int) {
			for _, pid := range testenv.NotEnding(testenv.PIDs()) {
				if strings.Join(testenv.CommandLine(pid), " ") == "sleep 1000" {
					pids = append(pids, pid)
				}
			}
			return pids
		}
		for range 20 {
			cmd := exec.Command("sh", "-c", "while :; do sleep 1000 & done")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			go func() { _ = cmd.Wait() }() // reaped at once, as by criu
			root, err := proc.IdentOf(cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, testenv.Soon, "it forks", func() bool { return len(children()) > 2 })
			if err := KillTree(&journal.Record{Root: &root}); err != nil {
				t.Fatal(err)
			}
			if left := children(); len(left) > 0 {
				for _, pid := range left {
					_ = exec.Command("kill", "-KILL", fmt.Sprint(pid)).Run()
				}
				t.Fatalf("processes are left: %v", left)
			}
		}
	})
}
