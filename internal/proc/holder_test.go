package proc

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// TestHoldersOf also finds the number of a process group whose leader has ended and was reaped:
// no new process can get it.
func TestHoldersOf(t *testing.T) {
	in, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, report, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	leader := exec.Command("sh", "-c", "cat <&3 >/dev/null & echo >&4")
	leader.ExtraFiles = []*os.File{in, report}
	leader.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := leader.Run(); err != nil {
		t.Fatal(err)
	}
	defer hold.Close() // ends the other
	report.Close()
	out.Close()
	tids, err := Threads(os.Getpid())
	if err != nil || len(tids) < 2 {
		t.Fatalf("threads %v: %v", tids, err)
	}
	tid := slices.Max(tids)
	group := leader.Process.Pid
	const nobody = 1<<22 - 1 // the last pid there is, on a kernel that goes so far
	holders, err := HoldersOf([]int{os.Getpid(), tid, group, nobody})
	if err != nil {
		t.Fatal(err)
	}
	if h := holders[os.Getpid()]; h.PID != os.Getpid() || h.As != "pid" || h.PPID != os.Getppid() || h.Ended {
		t.Errorf("own pid: %+v", h)
	}
	if h := holders[tid]; h.PID != os.Getpid() || h.As != "thread" {
		t.Errorf("own thread: %+v", h)
	}
	if h := holders[group]; h.PID == group || h.PID == 0 || h.As != "session" && h.As != "process group" {
		t.Errorf("the group without its leader: %+v", h)
	}
	if len(holders) != 3 {
		t.Errorf("holders %+v", holders)
	}
}

func TestHoldersOfAZombie(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	pid := cmd.Process.Pid
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	holders, err := HoldersOf([]int{pid})
	if err != nil || !holders[pid].Ended {
		t.Errorf("%+v, %v", holders, err)
	}
}

func TestIsKernelThread(t *testing.T) {
	root := t.TempDir()
	const kthreadd = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 1 0 0 20 0 1 0 25 0 0 18446744073709551615 0 0 0 0 0 0 0 2147483647 0 0 0 0 0 3 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
	if err := os.Mkdir(filepath.Join(root, "2"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "2", "stat"), []byte(kthreadd), 0o600); err != nil {
		t.Fatal(err)
	}
	fs, err := procfs.NewFS(root)
	if err != nil {
		t.Fatal(err)
	}
	p, err := fs.Proc(2)
	if err != nil {
		t.Fatal(err)
	}
	stat, err := p.Stat()
	if err != nil || !isKernelThread(stat) {
		t.Errorf("kthreadd: %+v, %v", stat, err)
	}
	if is, err := IsKernelThread(os.Getpid()); err != nil || is {
		t.Errorf("this test: %v, %v", is, err)
	}
}
