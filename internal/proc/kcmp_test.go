package proc

import (
	"os"
	"os/exec"
	"testing"
)

func TestSameFileKnowsInheritedDescriptors(t *testing.T) {
	first, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	again, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	cmd := exec.Command("/bin/sleep", "100")
	cmd.ExtraFiles = []*os.File{first} // descriptor 3
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	for fd, want := range map[int]bool{int(first.Fd()): true, int(again.Fd()): false, 1 << 19: false} {
		if same, err := SameFile(cmd.Process.Pid, 3, os.Getpid(), fd); err != nil || same != want {
			t.Errorf("descriptor %d is the same file: %v (%v), want %v", fd, same, err, want)
		}
	}
	if memory, files, err := SharedTables(cmd.Process.Pid, os.Getpid()); err != nil || memory || files {
		t.Errorf("a process of its own shares its memory (%v) or its descriptors (%v, %v)", memory, files, err)
	}
	if memory, files, err := SharedTables(os.Getpid(), os.Getpid()); err != nil || !memory || !files {
		t.Errorf("a process does not share its memory (%v) or its descriptors (%v, %v) with itself", memory, files, err)
	}
	if _, err := SameFile(1<<22, 0, os.Getpid(), 0); err == nil {
		t.Error("there is no such process")
	}
}
