package inject

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

func every(_ *proc.Process, threads []savedThread, _ []*procfs.ProcMap) (all []int) {
	for i := range threads {
		if !threads[i].Registers.waits() {
			all = append(all, i)
		}
	}
	return all
}

// TestAParkedThreadIsSteppedOn through its program, whatever that does, and is parked again where it then is.
func TestAParkedThreadIsSteppedOn(t *testing.T) {
	t.Parallel()
	p := startBorrowable(t)
	for moved := 0; moved == 0; { // the thread that computes is at a system call at times
		moved = p.stepOn(t, func() {})
	}
}

// TestAParkedThreadIsSteppedOnWhileTheDiskIsFull: its file has its room.
func TestAParkedThreadIsSteppedOnWhileTheDiskIsFull(t *testing.T) {
	t.Parallel()
	p := startBorrowable(t)
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size=64k"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	p.saved = filepath.Join(dir, "borrowed")
	rest := filepath.Join(dir, "rest")
	for moved := 0; moved == 0; must(t, os.Remove(rest)) {
		moved = p.stepOn(t, func() {
			if err := os.WriteFile(rest, make([]byte, 64<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("fill the disk: %v", err)
			}
		})
	}
}

// stepOn returns how many threads have moved. It calls isParked before they do.
func (p *borrowable) stepOn(t *testing.T, isParked func()) (moved int) {
	t.Helper()
	before := p.park(t)
	isParked()
	parked, err := stepOutIn(t.Context(), p.PID, 3000, every, func() bool { return false }, p.saved, func(string) {})
	must(t, err)
	for i, thread := range parked.Threads {
		if thread.Registers != before.Threads[i].Registers {
			moved++
		}
		if thread.Mask != before.Threads[i].Mask {
			t.Errorf("thread %d: its mask was %#x, and is said to be %#x", thread.TID, before.Threads[i].Mask, thread.Mask)
		}
	}
	p.wantWaiting(t, parked)
	p.stop(t)
	must(t, ReturnThreads(t.Context(), p.saved))
	p.wantReturned(t)
	p.goesOn(t)
	return moved
}

// TestAStopOfASteppedThreadIsNotLost, and does not end the steps: [proc.Stop] may have sent a surplus one. Nor does
// the SIGCONT of a logout after it.
func TestAStopOfASteppedThreadIsNotLost(t *testing.T) {
	t.Parallel()
	p := startBorrowable(t)
	compute := p.tids()[len(jobs)-1]
	only := func(_ *proc.Process, threads []savedThread, _ []*procfs.ProcMap) []int {
		return []int{slices.IndexFunc(threads, func(s savedThread) bool { return s.TID == compute })}
	}
	const most, stops, continues = 3000, 100, 200
	for _, isContinued := range []bool{false, true} {
		for steps := 0; steps < most; { // it is at a system call at times
			parked := p.park(t)
			p.wantWaiting(t, parked)
			steps = 0
			_, err := stepOutIn(t.Context(), p.PID, most, only, func() bool { return false }, p.saved, func(reached string) {
				if reached != "step" {
					return
				}
				switch steps++; {
				case steps == stops:
					must(t, unix.Tgkill(p.PID, compute, unix.SIGSTOP))
				case steps == continues && isContinued:
					must(t, p.Signal(unix.SIGCONT))
				}
			})
			must(t, err)
			for _, signalled := range []int{stops, continues} {
				if steps >= signalled && steps < signalled+10 {
					t.Fatalf("it was stepped %d times", steps)
				}
			}
			if steps < stops || steps > continues && isContinued {
				p.wantInWait(t, parked)
				p.stop(t)
			}
			must(t, proc.WaitStopped(t.Context(), p.Process))
			must(t, ReturnThreads(t.Context(), p.saved))
			p.wantReturned(t)
			p.goesOn(t)
		}
	}
}

// TestALockNamesItsOwner: one that goes on need not be stepped.
func TestALockNamesItsOwner(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self, err := proc.Open(os.Getpid())
	must(t, err)
	defer self.Close()
	own := unix.Gettid()
	mutex := &[3]uint32{2, 0, uint32(own)}
	wait := LockWait{call: proc.Call{Arguments: [6]uint64{uint64(uintptr(unsafe.Pointer(mutex)))}}}
	if !wait.HeldByOneOf(self, []int{1, own}) {
		t.Error("its owner is not known")
	}
	if wait.HeldByOneOf(self, []int{1}) {
		t.Error("it is said to be another thread's")
	}
	mutex[2] = 0
	if wait.HeldByOneOf(self, []int{1, own}) {
		t.Error("nobody has it")
	}
	runtime.KeepAlive(mutex)
}

// TestAThreadAtASystemCallIsNotStepped: a thread that waited is at one in an image of an earlier version.
func TestAThreadAtASystemCallIsNotStepped(t *testing.T) {
	t.Parallel()
	const read = 4
	p := startBorrowable(t)
	if jobs[read].name != "read" {
		t.Fatal("another thread reads")
	}
	parked := p.park(t)
	file := parked.savedThreads
	reads := slices.IndexFunc(file.Threads, func(s savedThread) bool { return s.TID == p.tids()[read] })
	if regs := &file.Threads[reads].Registers; runtime.GOARCH == "amd64" { // elsewhere it is there already
		regs.setCall(regs.pc()-uint64(len(syscallInstruction)), regs.number())
	}
	want := file.Threads[reads].Registers
	must(t, file.write(p.saved))
	only := func(*proc.Process, []savedThread, []*procfs.ProcMap) []int { return []int{reads} }
	parked, err := stepOutIn(t.Context(), p.PID, 3000, only, func() bool { return false }, p.saved, func(string) {})
	must(t, err)
	if got := parked.Threads[reads].Registers; got != want {
		t.Errorf("it has moved from %#x to %#x", want.pc(), got.pc())
	}
	p.wantWaiting(t, parked)
	p.stop(t)
	must(t, ReturnThreads(t.Context(), p.saved))
	p.wantReturned(t)
	p.goesOn(t)
}
