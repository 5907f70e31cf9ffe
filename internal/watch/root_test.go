package watch

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"cucriu/criuutil"
	"cucriu/internal/image"
	"cucriu/internal/journal"
)

// sleeper starts a process that stands for the root of a restore.
func sleeper(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// TestAnOrphanedRootIsKnownByWhatItInheritedFromItsCriu checks that no other process with
// the same pid in its image is taken for the root, not even one that restores the same
// image.
func TestAnOrphanedRootIsKnownByWhatItInheritedFromItsCriu(t *testing.T) {
	// This program plays criu.
	stranger := sleeper(t)
	self, err := criuutil.OpenCriu(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	mark, err := self.MarkChildren()
	if err != nil || mark == 0 {
		t.Fatalf("mark %d: %v", mark, err)
	}
	root := sleeper(t)
	for name, test := range map[string]struct {
		pid      int
		mark     uint64
		root     int
		suspects []int
	}{
		"the root":                    {root, mark, root, nil},
		"another restore's":           {stranger, mark, 0, nil},
		"without a mark nobody knows": {root, 0, 0, []int{root}},
	} {
		r := &journal.Record{Kind: journal.KindRestore, Criu: self.Ident, Mark: test.mark, CriuExe: Executable(test.pid), Manifest: &image.Manifest{RootPID: test.pid}}
		found, suspects, err := orphanedRoot(r)
		if err != nil || (found != nil) != (test.root != 0) || found != nil && found.PID != test.root || !slices.Equal(suspects, test.suspects) {
			t.Errorf("%s: found %v, suspects %v: %v", name, found, suspects, err)
		}
	}
}
