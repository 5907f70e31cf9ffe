package hooks

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"

	"cucriu/criuutil"
)

// sleeper starts a process that inherits a descriptor.
func sleeper(t *testing.T, inherits *os.File) int {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.ExtraFiles = []*os.File{inherits}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

func openDir(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestAnOrphanedRootIsKnownByWhatItInheritedFromItsCriu, and no other process with
// the same pid in its image is taken for it: not even one that restores the same image.
func TestAnOrphanedRootIsKnownByWhatItInheritedFromItsCriu(t *testing.T) {
	// This program is the criu.
	dir := t.TempDir()
	marked, others := openDir(t, dir), openDir(t, dir)
	root, stranger := sleeper(t, marked), sleeper(t, others)
	self, err := criuutil.OpenCriu(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	imageDir := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), marked.Fd())
	mark, err := self.MarkImageDir(imageDir)
	if err != nil || mark == 0 {
		t.Fatalf("mark %d: %v", mark, err)
	}
	if again, err := self.MarkImageDir(imageDir); err != nil || again != mark {
		t.Fatalf("marked again: %d, want %d: %v", again, mark, err)
	}
	for name, test := range map[string]struct {
		pid      int
		mark     int64
		root     int
		suspects []int
	}{
		"the root":                    {root, mark, root, nil},
		"another restore's":           {stranger, mark, 0, nil},
		"without a mark nobody knows": {root, 0, 0, []int{root}},
	} {
		s := &Session{Kind: KindRestore, Criu: self.Ident, Mark: test.mark, ImageDir: dir, CriuExe: executable(test.pid), Manifest: &Manifest{RootPID: test.pid}}
		found, suspects, err := s.orphanedRoot()
		if err != nil || (found != nil) != (test.root != 0) || found != nil && found.PID != test.root || !slices.Equal(suspects, test.suspects) {
			t.Errorf("%s: found %v, suspects %v: %v", name, found, suspects, err)
		}
	}
}
