package hooks

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
)

// startTree starts a shell command as the root of a tree.
func startTree(t *testing.T, script string) (pid int) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

func TestChildrenThatEndWhileTheyAreLookedAtAreNotTakenForStopped(t *testing.T) {
	d := &dump{suspension: suspension{root: startTree(t, "while :; do /bin/true; done")}}
	for range 4000 { // one look in about 40 meets a child that ends
		if err := d.findStopped(); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.stoppedOthers) > 0 {
		t.Errorf("%d children were taken for stopped, and none of them was", len(d.stoppedOthers))
	}
}

func TestAStoppedProcessIsToldFromAZombie(t *testing.T) {
	// The shell that execs does not wait for what it has started.
	root := startTree(t, "/bin/true & sleep 1000 & exec sleep 1000")
	stopped := 0
	awaitChild := func(zombie bool) {
		t.Helper()
		deadline := time.Now().Add(10 * time.Second)
		for time.Now().Before(deadline) {
			children, err := proc.Children(root)
			if err != nil {
				t.Fatal(err)
			}
			for _, pid := range children {
				stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
				if err != nil {
					continue
				}
				switch state := strings.Fields(string(stat))[2]; {
				case zombie && state == "Z":
					return
				case !zombie && state == "T":
					return
				case !zombie && state == "S":
					stopped = pid
					_ = unix.Kill(pid, unix.SIGSTOP)
				}
			}
			time.Sleep(time.Millisecond)
		}
		t.Fatal("no such child")
	}
	awaitChild(true)
	awaitChild(false)
	d := &dump{suspension: suspension{root: root}}
	if err := d.findStopped(); err != nil || len(d.stoppedOthers) != 1 || d.stoppedOthers[0] != stopped {
		t.Errorf("found %v stopped (%v), want %d alone", d.stoppedOthers, err, stopped)
	}
}
