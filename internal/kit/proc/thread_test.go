package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOwnThreadIsNotTheMainOne: what a thread changes of itself does not stay with the process.
func TestOwnThreadIsNotTheMainOne(t *testing.T) {
	for range 1000 {
		var tid int
		if got := OnOwnThread(func() { tid = unix.Gettid() }); got != tid || tid == unix.Getpid() {
			t.Fatalf("it was called on thread %d of process %d, and told %d", tid, unix.Getpid(), got)
		}
	}
}

// TestWhereIsNamesTheSystemCall that a thread waits in.
func TestWhereIsNamesTheSystemCall(t *testing.T) {
	in, hold, err := os.Pipe()
	must(t, err)
	defer in.Close()
	cat := exec.Command("cat")
	cat.Stdin = in
	must(t, cat.Start())
	pid := cat.Process.Pid
	want := fmt.Sprintf("(system call %d)", unix.SYS_READ)
	for where := ""; !strings.HasPrefix(where, "in state S") || !strings.HasSuffix(where, want); {
		where = WhereIs(pid, pid)
		if _, err := ThreadStat(pid, pid); errors.Is(err, ErrGone) {
			t.Fatalf("cat has ended: %s", where)
		}
	}
	hold.Close()
	must(t, cat.Wait())
	if where := WhereIs(pid, pid); strings.Contains(where, "in state") {
		t.Errorf("after its end: %s", where)
	}
}
