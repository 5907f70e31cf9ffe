package proc

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestEndStatusOfAZombieAndOfWhatIsGone compares what is found with what the parent is told.
func TestEndStatusOfAZombieAndOfWhatIsGone(t *testing.T) {
	for command, want := range map[string]unix.WaitStatus{"exit 7": 7 << 8, "kill -TERM $$": unix.WaitStatus(unix.SIGTERM), "exit 0": 0} {
		t.Run(command, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", "read line; "+command)
			input, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			p, err := Open(cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if status, known := p.EndStatus(); known {
				t.Errorf("it runs, and has ended with %#x", status)
			}
			input.Close()
			if err := p.WaitExit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if status, known := p.EndStatus(); !known || status != want {
				t.Errorf("the zombie: %#x, %v, want %#x", status, known, want)
			}
			_ = cmd.Wait()
			// An older kernel does not know it. None may tell anything else.
			if status, known := p.EndStatus(); known && status != want {
				t.Errorf("it is gone: %#x, want %#x", status, want)
			} else {
				t.Logf("the kernel tells: %v", known)
			}
		})
	}
}
