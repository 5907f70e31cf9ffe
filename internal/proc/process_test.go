package proc

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// start starts a command that ends with the test.
func start(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, pid int) *Process {
	t.Helper()
	p, err := Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestAZombieHasEnded(t *testing.T) {
	cmd := start(t, "sleep", "100")
	p := open(t, cmd.Process.Pid)
	if !p.Alive() || p.Exiting() {
		t.Fatal("a running process is reported as ended")
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitExit(t.Context()); err != nil { // nobody has reaped it
		t.Fatal(err)
	}
	if p.Alive() || !p.Exiting() {
		t.Fatal("a zombie is reported as alive")
	}
	if _, err := Reopen(p.Ident); !errors.Is(err, ErrGone) {
		t.Fatalf("reopened a zombie: %v", err)
	}
	_ = cmd.Wait()
	if err := p.Signal(unix.SIGKILL); !errors.Is(err, ErrGone) {
		t.Fatalf("signal to a process that is gone: %v", err)
	}
}

func TestAReusedPIDIsAnotherProcess(t *testing.T) {
	p := open(t, os.Getpid())
	if again, err := Reopen(p.Ident); err != nil {
		t.Fatal(err)
	} else {
		again.Close()
	}
	other := p.Ident
	other.StartTime++
	if _, err := Reopen(other); !errors.Is(err, ErrGone) {
		t.Fatalf("a process with another start time was taken for the same: %v", err)
	}
}

func TestWaitExitEndsWithItsContext(t *testing.T) {
	p := open(t, start(t, "sleep", "100").Process.Pid)
	for range 2 { // the first wait leaves nothing behind that ends the second
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := p.WaitExit(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("wait: %v", err)
		}
		cancel()
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitExit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestOpenProcessRefusesWhatIsNoPID(t *testing.T) {
	for _, pid := range []int{0, -1, 1 << 30} {
		if p, err := Open(pid); err == nil {
			p.Close()
			t.Errorf("opened pid %d", pid)
		}
	}
}

func TestTreeHoldsChildrenOfChildren(t *testing.T) {
	cmd := start(t, "sh", "-c", "sh -c 'sleep 100 & sleep 100 & wait' & wait")
	deadline := time.Now().Add(10 * time.Second)
	for {
		pids, err := Tree(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if len(pids) == 4 && pids[0] == cmd.Process.Pid {
			for _, pid := range pids[1:] {
				if ancestor, err := IsAncestor(cmd.Process.Pid, pid); err != nil || !ancestor {
					t.Errorf("IsAncestor(%d, %d): %v %v", cmd.Process.Pid, pid, ancestor, err)
				}
				defer unix.Kill(pid, unix.SIGKILL)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("tree: %v", pids)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestParseStatus(t *testing.T) {
	got, err := parseStatus(7, []byte("Name:\ta name: with colon\nPPid:\t3\nTracerPid:\t12\nNSpid:\t7\t2\t1\n"+
		"VmLck:\t      16 kB\nRssAnon:\t    40 kB\nRssFile:\t    9 kB\nRssShmem:\t    8 kB\nVmSwap:\t    2 kB\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "a name: with colon" || got.PPID != 3 || got.TracerPID != 12 || !slices.Equal(got.NSPID, []int{7, 2, 1}) || got.ImagePID() != 1 {
		t.Errorf("status: %+v", got)
	}
	if got.Anonymous != 42<<10 || got.Shared != 8<<10 || got.Locked != 16<<10 {
		t.Errorf("its memory: %+v", got)
	}
	for _, bad := range []string{"", "NSpid:\tx\n", "NSpid:\t1\nPPid:\t\n", "NSpid:\t1\nRssAnon:\tmuch kB\n"} {
		if _, err := parseStatus(7, []byte(bad)); err == nil {
			t.Errorf("parsed %q", bad)
		}
	}
}

func TestANameIsPrintable(t *testing.T) {
	status, err := parseStatus(7, []byte("Name:\ta\x1b[2J é\nNSpid:\t7\n"))
	if err != nil || status.Name != "a?[2J é" {
		t.Fatalf("%q, %v", status.Name, err)
	}
}
