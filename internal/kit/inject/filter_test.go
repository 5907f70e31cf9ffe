package inject

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// TestASeccompFilterDoesNotJudgeWhatBorrowedThreadsCall uses a target whose filter kills it
// for the advice. The filter allows the wait, so the target can be parked, too.
func TestASeccompFilterDoesNotJudgeWhatBorrowedThreadsCall(t *testing.T) {
	p := startTarget(t, "filtered", len(jobs))
	if status, err := proc.ReadStatus(p.PID); err != nil || !status.Seccomp {
		t.Fatalf("the target has no filter: %+v %v", status, err)
	}
	p.stop(t)
	b := p.borrow(t, p.tids()...)
	must(t, b.Madvise(t.Context(), []proc.Range{p.part(0, 64<<20)}, unix.MADV_POPULATE_WRITE))
	must(t, b.Return(t.Context()))
	p.wantReturned(t)
	p.goesOn(t)

	parked := p.park(t)
	p.wantWaiting(t, parked)
	must(t, ReturnThreads(t.Context(), p.saved))
	p.goesOn(t)
}

// TestWhatAFilterAllowsIsAsked, of a thread that is to make the call by itself, which is judged by its arguments.
func TestWhatAFilterAllowsIsAsked(t *testing.T) {
	p := startTarget(t, "filtered", len(jobs))
	for advice, allowed := range map[uint64]bool{unix.MADV_NORMAL: true, unix.MADV_POPULATE_WRITE: false} {
		tracer := NewTracer()
		must(t, tracer.Run(p.tids()...))
		err := tracer.RequireAllowed(t.Context(), Call{unix.SYS_MADVISE, []uint64{0, 0, advice}})
		if allowed != (err == nil) || !allowed && !errors.Is(err, ErrFiltered) {
			t.Errorf("madvise with %d: %v", advice, err)
		}
		must(t, tracer.Release(t.Context()))
	}
}

// TestAProcessWhoseFilterForbidsTheWaitIsNotParked, and is not harmed.
func TestAProcessWhoseFilterForbidsTheWaitIsNotParked(t *testing.T) {
	p := startTarget(t, "filtered wait", len(jobs))
	p.stop(t)
	if _, err := Park(t.Context(), p.PID, nil, p.saved); !errors.Is(err, ErrFiltered) {
		t.Fatalf("want ErrFiltered, got %v", err)
	}
	if half, err := IsParked(p.saved); half || err != nil {
		t.Fatalf("something is left of the try: %v %v", half, err)
	}
	p.wantReturned(t)
	p.goesOn(t)
}

const numberOffset, firstArgument = 0, 16 // in struct seccomp_data

func argumentOffset(i int) uint32 { return firstArgument + 8*uint32(i) }

// filterPopulating installs a seccomp filter for all threads that kills the caller of
// madvise with MADV_POPULATE_WRITE.
func filterPopulating() {
	mustFilter(unix.SECCOMP_FILTER_FLAG_TSYNC, []bpf.Instruction{
		bpf.LoadAbsolute{Off: numberOffset, Size: 4},
		bpf.JumpIf{Val: unix.SYS_MADVISE, SkipFalse: 3},
		bpf.LoadAbsolute{Off: argumentOffset(2), Size: 4},
		bpf.JumpIf{Val: unix.MADV_POPULATE_WRITE, SkipFalse: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
	})
}

// filterParking installs two seccomp filters. The older one kills the caller of futex for a
// large value, as the code is on which parked threads wait. Go's own values are small, or -1 where
// threads contend for a lock.
func filterParking() {
	mustFilter(unix.SECCOMP_FILTER_FLAG_TSYNC, []bpf.Instruction{
		bpf.LoadAbsolute{Off: numberOffset, Size: 4},
		bpf.JumpIf{Val: unix.SYS_FUTEX, SkipFalse: 4},
		bpf.LoadAbsolute{Off: argumentOffset(2), Size: 4},
		bpf.JumpIf{Val: 0xffffffff, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: 0xffff, SkipFalse: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
	})
	filterPopulating()
}

func mustFilter(flags uintptr, program []bpf.Instruction) {
	raw, err := bpf.Assemble(program)
	if err != nil {
		panic(err)
	}
	filter := unix.SockFprog{Len: uint16(len(raw)), Filter: (*unix.SockFilter)(unsafe.Pointer(&raw[0]))}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&filter))); errno != 0 {
		panic(errno)
	}
}

// TestAFilterIsAnsweredAsTheKernelAnswersIt compares what the kernel and we show a filter of
// a system call, word by word: the filter answers with an errno made of the word.
func TestAFilterIsAnsweredAsTheKernelAnswersIt(t *testing.T) {
	const unused = 1000 // the number of no system call
	call := [6]uint64{0x1111_0123_2222_0456, 0x789_0000_0abc, 0x7ff_0000_0001, 1<<63 | 0x2, 0x3_0000_0777, 0x5a5_0000_05a5}
	var regs registers
	regs = regs.calling(0x4000, unused, call[0], call[1], call[2])
	for i := range call {
		regs.setArgument(i, call[i])
	}
	for offset := uint32(0); offset < 64; offset += 4 {
		if offset == 8 || offset == 12 {
			continue // the address of Go's own instruction
		}
		program := []bpf.Instruction{
			bpf.LoadAbsolute{Off: numberOffset, Size: 4},
			bpf.JumpIf{Val: unused, SkipFalse: 4},
			bpf.LoadAbsolute{Off: offset, Size: 4},
			bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0x7ff},
			bpf.ALUOpConstant{Op: bpf.ALUOpOr, Val: unix.SECCOMP_RET_ERRNO},
			bpf.RetA{},
			bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
		}
		raw, err := bpf.Assemble(program)
		must(t, err)
		ours, err := judge(raw, regs.seccompData())
		must(t, err)
		kernels := make(chan unix.Errno)
		go func() {
			runtime.LockOSThread() // for ever: the filter ends with the thread
			mustFilter(0, program)
			_, _, errno := unix.RawSyscall6(unused, uintptr(call[0]), uintptr(call[1]), uintptr(call[2]), uintptr(call[3]), uintptr(call[4]), uintptr(call[5]))
			kernels <- errno
		}()
		if kernels := <-kernels; ours != unix.SECCOMP_RET_ERRNO|uint32(kernels) {
			t.Errorf("the word at %d: we answer %#x, the kernel %#x", offset, ours, int(kernels))
		}
	}
}

// TestAStrictProcessIsNotParked: it may only read and write.
func TestAStrictProcessIsNotParked(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CRIUUTIL_TARGET=strict", "GODEBUG=asyncpreemptoff=1")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	saved := filepath.Join(t.TempDir(), "saved")
	if _, err := Park(t.Context(), cmd.Process.Pid, nil, saved); !errors.Is(err, ErrFiltered) {
		t.Errorf("want ErrFiltered, got %v", err)
	}
}

// runStrict puts the first thread into the strict mode and lets it wait for ever. From then on the Go runtime must not
// make a call of its own on it: it neither interrupts the thread (asyncpreemptoff) nor hears of the calls.
func runStrict() {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		panic(unix.Exec("/proc/self/exe", os.Args, os.Environ())) // another try
	}
	nothing, written, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	var dot byte
	fd, p := nothing.Fd(), uintptr(unsafe.Pointer(&dot))
	unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_STRICT, 0)
	unix.RawSyscall(unix.SYS_WRITE, 1, p, 1)
	unix.RawSyscall(unix.SYS_READ, fd, p, 1)
	runtime.KeepAlive(written)
}
