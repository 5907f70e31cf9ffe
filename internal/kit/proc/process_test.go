package proc

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// start starts a command that ends with the test.
func start(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(name, args...)
	must(t, cmd.Start())
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
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func TestAZombieHasEnded(t *testing.T) {
	cmd := start(t, "sleep", "100")
	p := open(t, cmd.Process.Pid)
	if !p.Alive() || p.Exiting() {
		t.Fatal("a running process is reported as ended")
	}
	must(t, p.Signal(unix.SIGKILL))
	if err := p.WaitExit(t.Context()); err != nil { // nobody has reaped it
		t.Fatal(err)
	}
	if p.Alive() || !p.Exiting() {
		t.Fatal("a zombie is reported as alive")
	}
	if _, err := Reopen(p.Ident); !errors.Is(err, ErrGone) {
		t.Fatalf("reopened a zombie: %v", err)
	}
	if holders, err := HoldersOf([]int{p.PID}); err != nil || !holders[p.PID].Ended || !holders[p.PID].Exiting {
		t.Errorf("holders of its pid: %+v, %v", holders, err)
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
	must(t, p.Signal(unix.SIGKILL))
	must(t, p.WaitExit(t.Context()))
}

func TestWaitsForOneProcessAreIndependent(t *testing.T) {
	p := open(t, start(t, "sleep", "100").Process.Pid)
	ended := make(chan error, 1)
	go func() { ended <- p.WaitExit(t.Context()) }()
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		if err := p.WaitExit(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a short wait: %v", err)
		}
		cancel()
	}
	select {
	case err := <-ended:
		t.Fatalf("the long wait ended with a short one: %v", err)
	default:
	}
	must(t, p.Signal(unix.SIGKILL))
	must(t, <-ended)
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
	deadline := time.Now().Add(time.Minute)
	for {
		pids, err := Tree(cmd.Process.Pid)
		must(t, err)
		if len(pids) == 4 && pids[0] == cmd.Process.Pid {
			for _, pid := range pids[1:] {
				if ancestor, err := IsAncestor(cmd.Process.Pid, pid); err != nil || !ancestor {
					t.Errorf("IsAncestor(%d, %d): %v %v", cmd.Process.Pid, pid, ancestor, err)
				}
				defer func() { _ = unix.Kill(pid, unix.SIGKILL) }()
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
	must(t, err)
	if got.Name != "a name: with colon" || got.PPID != 3 || got.TracerPID != 12 || !slices.Equal(got.NSPID, []int{7, 2, 1}) || got.ImagePID() != 1 {
		t.Errorf("status: %+v", got)
	}
	if got.Anonymous != 42<<10 || got.Shared != 8<<10 || got.Locked != 16<<10 {
		t.Errorf("its memory: %+v", got)
	}
	if got, err = parseStatus(7, []byte("Name:\ta\x1b[2J é\nNSpid:\t7\n")); err != nil || got.Name != "a?[2J é" {
		t.Errorf("a name that is not printable: %q, %v", got.Name, err)
	}
	for _, bad := range []string{"", "NSpid:\tx\n", "NSpid:\t1\nPPid:\t\n", "NSpid:\t1\nRssAnon:\tmuch kB\n"} {
		if _, err := parseStatus(7, []byte(bad)); err == nil {
			t.Errorf("parsed %q", bad)
		}
	}
}

// TestEndStatusOfAZombieAndOfWhatIsGone compares what is found with what the parent is told.
func TestEndStatusOfAZombieAndOfWhatIsGone(t *testing.T) {
	for command, want := range map[string]unix.WaitStatus{"exit 7": 7 << 8, "kill -TERM $$": unix.WaitStatus(unix.SIGTERM), "exit 0": 0} {
		t.Run(command, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", "read line; "+command)
			input, err := cmd.StdinPipe()
			must(t, err)
			must(t, cmd.Start())
			p := open(t, cmd.Process.Pid)
			if status, known := p.EndStatus(); known {
				t.Errorf("it runs, and has ended with %#x", status)
			}
			input.Close()
			must(t, p.WaitExit(t.Context()))
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

// TestHoldersOf also finds the number of a process group whose leader has ended and was reaped:
// no new process can get it.
func TestHoldersOf(t *testing.T) {
	in, hold, err := os.Pipe()
	must(t, err)
	defer in.Close()
	out, report, err := os.Pipe()
	must(t, err)
	leader := exec.Command("sh", "-c", "cat <&3 >/dev/null & echo >&4")
	leader.ExtraFiles = []*os.File{in, report}
	leader.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	must(t, leader.Run())
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
	must(t, err)
	if h := holders[os.Getpid()]; h.PID != os.Getpid() || h.As != "pid" || h.PPID != os.Getppid() || h.Ended || h.Exiting {
		t.Errorf("own pid: %+v", h)
	}
	if h := holders[tid]; h.PID != os.Getpid() || h.As != "thread ID" {
		t.Errorf("own thread: %+v", h)
	}
	if h := holders[group]; h.PID == group || h.PID == 0 || h.As != "session ID" && h.As != "process group ID" {
		t.Errorf("the group without its leader: %+v", h)
	}
	if len(holders) != 3 {
		t.Errorf("holders %+v", holders)
	}
}

// TestAHolderThatIsKilledAndNotYetGoneIsExiting: the first process of a pid namespace is no zombie before
// its children are reaped, and only its tracer can reap a traced one.
func TestAHolderThatIsKilledAndNotYetGoneIsExiting(t *testing.T) {
	runtime.LockOSThread() // which traces
	defer runtime.UnlockOSThread()
	cmd := exec.Command("sh", "-c", "sleep 1000 & wait")
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	must(t, cmd.Start())
	pid := cmd.Process.Pid
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var tree []int
	await := func(what string, condition func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("not seen: " + what)
			}
		}
	}
	await("its child", func() bool { tree, _ = Tree(pid); return len(tree) == 2 })
	child := tree[1]
	must(t, unix.PtraceSeize(child))
	holder := func() Holder {
		holders, err := HoldersOf([]int{pid})
		must(t, err)
		return holders[pid]
	}
	if h := holder(); h.PID != pid || h.Exiting {
		t.Errorf("before it is killed: %+v", h)
	}
	must(t, cmd.Process.Kill())
	await("that it is exiting", func() bool { return holder().Exiting })
	if h := holder(); h.PID != pid || h.Ended {
		t.Errorf("while its child is not reaped: %+v", h)
	}
	_, err := unix.Wait4(child, nil, unix.WALL, nil)
	must(t, err)
	_ = cmd.Wait()
	if h := holder(); h.PID != 0 {
		t.Errorf("after its end: %+v", h)
	}
}

func TestIsKernelThread(t *testing.T) {
	const kthreadd = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 1 0 0 20 0 1 0 25 0 0 18446744073709551615 0 0 0 0 0 0 0 2147483647 0 0 0 0 0 3 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
	fs, err := procfs.NewFS(systemOf(t, map[string]string{"2/stat": kthreadd}).Root)
	must(t, err)
	p, err := fs.Proc(2)
	must(t, err)
	stat, err := p.Stat()
	if err != nil || !isKernelThread(stat) {
		t.Errorf("kthreadd: %+v, %v", stat, err)
	}
	if is, err := IsKernelThread(os.Getpid()); err != nil || is {
		t.Errorf("this test: %v, %v", is, err)
	}
}
