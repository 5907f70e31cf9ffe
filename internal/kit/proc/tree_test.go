package proc

import (
	"os"
	"os/exec"
	"slices"
	"testing"
)

// TestChildrenOfThreadsThatEnd: their children become those of another thread, which may have been looked
// at before.
func TestChildrenOfThreadsThatEnd(t *testing.T) {
	for range 200 {
		cmd := exec.Command("sleep", "1000")
		var err error
		OnOwnThread(func() { err = cmd.Start() })
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			children, err := Children(os.Getpid())
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(children, cmd.Process.Pid) {
				t.Fatalf("child %d is not among %v", cmd.Process.Pid, children)
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}
