package proc

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestATreeIsGoneWhenItWasKilled, also a process in it that was stopped.
func TestATreeIsGoneWhenItWasKilled(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 1000 & sleep 1000 & kill -STOP $!; echo begun; sleep 1000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	root, err := IdentOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := OpenTree(&root, nil)
	if err != nil || len(tree) < 3 {
		t.Fatalf("%v: %v", tree, err)
	}
	defer CloseAll(tree)
	if err := KillTree(&root, nil, func(p *Process) bool { return !p.Alive() }); err != nil {
		t.Fatal(err)
	}
	for _, p := range tree {
		if p.Alive() {
			t.Errorf("%v lives", p)
		}
	}
	_ = cmd.Wait()
	again, err := OpenTree(&root, []Ident{tree[1].Ident})
	if err != nil || len(again) > 0 {
		t.Errorf("a tree that has ended: %v, %v", again, err)
	}
	if err := SignalAll(unix.SIGTERM, tree...); err != nil {
		t.Errorf("a signal to those that have ended: %v", err)
	}
}
