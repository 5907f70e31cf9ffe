package hooks

import (
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
	dir := t.TempDir()
	crius, others := openDir(t, dir), openDir(t, dir)
	root, stranger := sleeper(t, crius), sleeper(t, others)
	self, err := criuutil.OpenProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	// This program is criu and the watcher.
	session := func(rootPID int) *Session {
		return &Session{Kind: KindRestore, Criu: self.Ident, Watcher: &self.Ident, ImageFD: int(crius.Fd()), CriuExe: executable(root), Manifest: &Manifest{RootPID: rootPID}}
	}
	found, suspects, err := session(root).orphanedRoot()
	if err != nil || found == nil || found.PID != root {
		t.Errorf("the root is process %d; found %v, suspects %v: %v", root, found, suspects, err)
	}
	found, suspects, err = session(stranger).orphanedRoot()
	if err != nil || found != nil || len(suspects) != 0 {
		t.Errorf("a stranger is taken for the root: found %v, suspects %v: %v", found, suspects, err)
	}
	unwatched := session(stranger)
	unwatched.Watcher = nil
	found, suspects, err = unwatched.orphanedRoot()
	if err != nil || found != nil || !slices.Equal(suspects, []int{stranger}) {
		t.Errorf("without a watcher nobody can tell: found %v, suspects %v: %v", found, suspects, err)
	}
}
