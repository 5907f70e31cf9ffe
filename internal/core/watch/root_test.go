package watch

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/proc"
)

// sleeper starts a process that shares nothing with this one.
func sleeper(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// forked starts a process that stands for the root of a restore.
func forked(t *testing.T) int {
	t.Helper()
	pid, errno := fork()
	if errno != 0 {
		t.Fatal(errno)
	}
	t.Cleanup(func() {
		_ = unix.Kill(int(pid), unix.SIGKILL)
		_, _ = unix.Wait4(int(pid), nil, 0, nil)
	})
	return int(pid)
}

// fork forks this program. The child must not come to Go's scheduler, whose other threads it lacks.
//
//go:norace
//go:nosplit
func fork() (pid uintptr, errno unix.Errno) {
	pid, _, errno = unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	for pid == 0 && errno == 0 {
		unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
	return pid, errno
}

// TestAnOrphanedRootIsKnownByWhatItInheritedFromItsCriu checks that no other process with
// the same pid in its image is taken for the root, not even one that restores the same
// image. The root may execute the job's program already.
func TestAnOrphanedRootIsKnownByWhatItInheritedFromItsCriu(t *testing.T) {
	// This program plays criu.
	stranger, older := sleeper(t), forked(t)
	memory, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	self, err := criuutil.OpenCriu(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	mark, err := self.Mark()
	if err != nil || len(mark) == 0 {
		t.Fatalf("mark %v: %v", mark, err)
	}
	root := forked(t)
	for name, test := range map[string]struct {
		pid      int
		mark     []uint64
		root     int
		suspects []int
	}{
		"the root":                    {root, mark, root, nil},
		"another restore's":           {stranger, mark, 0, nil},
		"another restore's, forked":   {older, mark, 0, nil},
		"without a mark nobody knows": {stranger, nil, 0, []int{stranger}},
	} {
		criuExe := Executable(test.pid)
		if test.root != 0 {
			criuExe = "/usr/sbin/criu"
		}
		r := &journal.Record{
			Kind: journal.KindRestore, Criu: proc.Ident(self.Ident), Mark: test.mark, CriuExe: criuExe,
			Manifest: &imagedir.Manifest{RootPID: test.pid},
		}
		found, suspects, err := orphanedRoot(r)
		if err != nil || (found != nil) != (test.root != 0) || found != nil && found.PID != test.root || !slices.Equal(suspects, test.suspects) {
			t.Errorf("%s: found %v, suspects %v: %v", name, found, suspects, err)
		}
	}
}
