package stages

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
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
	root := startTree(t, "while :; do /bin/true; done")
	for range 4000 { // one look in about 40 meets a child that ends
		stopped, err := findStopped(root, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(stopped) > 0 {
			t.Errorf("children %v were taken for stopped, and none of them was", stopped)
		}
	}
}

func TestAStoppedProcessIsToldFromAZombie(t *testing.T) {
	// The shell that execs does not wait for what it has started.
	root := startTree(t, "/bin/true & sleep 1000 & exec sleep 1000")
	stopped := 0
	awaitChild := func(zombie bool) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
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
	if found, err := findStopped(root, nil); err != nil || len(found) != 1 || found[0] != stopped {
		t.Errorf("found %v stopped (%v), want %d alone", found, err, stopped)
	}
}
