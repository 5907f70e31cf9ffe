package inject

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/drivers"
	"cucriu/internal/kit/proc"
)

// A parked thread may hold a lock of the C library: it was stopped in malloc, say. The restore thread,
// which runs alone and needs memory, then waits for it without end. So the parked thread is stepped
// instruction by instruction, with its own registers, until the waiter goes on; then it is parked again,
// where it is now.

// LockWait describes a thread that waits for a lock of the C library.
type LockWait struct {
	tid  int
	call proc.Call
}

func (w LockWait) lock() uint64 { return w.call.Arguments[0] } // its address

// WaitsForLock reports whether a thread waits for a lock of the C library, and for which one. Two equal
// answers some time apart mean that it has waited all that time, or gets nowhere.
func WaitsForLock(pid, tid int) (LockWait, bool) {
	call, waits := proc.WaitsIn(pid, tid)
	// FUTEX_WAIT for a word that is 2: how its locks and mutexes wait, and its conditions do not.
	const private = 128 // FUTEX_PRIVATE_FLAG
	if !waits || call.Number != unix.SYS_FUTEX || call.Arguments[1]&^private != 0 || call.Arguments[2] != 2 {
		return LockWait{}, false
	}
	return LockWait{tid, call}, true
}

// HeldByOneOf reports whether a mutex names one of these threads as its owner. Some locks name none.
func (w LockWait) HeldByOneOf(process *proc.Process, tids []int) bool {
	owner := w.owner(process)
	return slices.ContainsFunc(tids, func(tid int) bool {
		status, err := proc.ReadStatus(tid)
		return err == nil && status.ImagePID() == int(owner)
	})
}

// owner reads the third word of a pthread_mutex_t. A lock without an owner has other things there.
func (w LockWait) owner(process *proc.Process) (tid uint32) {
	_ = process.ReadMemory(bytesOf(&tid), w.lock()+8)
	return tid
}

func (w LockWait) over(pid int) bool {
	now, waits := WaitsForLock(pid, w.tid)
	return !waits || now != w
}

// StepOut lets the parked threads of a process run, one after the other and in small steps, until a
// thread of it no longer waits for a lock that one of them holds. Only those run that may hold it: the
// one that a mutex names, else those that were stopped in the same library. It returns the threads as
// they are parked now, also in the file saved, and whether the wait is over.
//
// If we are killed meanwhile, [ReturnThreads] leaves a thread where it has come to.
func StepOut(ctx context.Context, pid int, wait LockWait, saved string) (parked Parked, over bool, err error) {
	isOver := func() bool { return wait.over(pid) }
	const most = 300_000 // instructions at once; a second or so
	parked, err = stepOutIn(ctx, pid, most, wait.holders, isOver, saved, func(string) {})
	return parked, isOver(), err
}

// stepOutIn is StepOut. It calls at as [parkIn] does.
func stepOutIn(ctx context.Context, pid, most int, holders func(*proc.Process, []savedThread, []*procfs.ProcMap) []int, over func() bool, saved string, at func(string)) (Parked, error) {
	file, err := threadsKind.Read(saved)
	if err != nil {
		return Parked{}, err
	}
	process, err := proc.Open(pid)
	if err != nil {
		return Parked{}, err
	}
	defer process.Close()
	maps, err := proc.Mappings(pid)
	if err != nil {
		return Parked{}, err
	}
	for _, i := range holders(process, file.Threads, maps) {
		if over() {
			break
		}
		l := startLoan(savedThreads{PID: pid, Instruction: file.Instruction, Threads: file.Threads[i : i+1]}, "", at)
		err := l.do(func() error {
			defer func() { l.over = true }()
			defer l.detach()
			t, err := l.takeParked(ctx, process)
			if err != nil {
				return err
			}
			last := l.step(process, t, most, maps, over)
			if err := l.settle(ctx, t, last); err != nil {
				return err
			}
			return l.parkAgain(process, t, func() error {
				file.Threads[i] = t.savedThread
				return file.rewrite(saved)
			})
		})
		<-l.done
		if err != nil && !errors.Is(err, proc.ErrGone) {
			return Parked{}, fmt.Errorf("let thread %d of process %d out of a lock: %w", file.Threads[i].TID, pid, err)
		}
	}
	return newParked(file), nil
}

// holders returns which of the parked threads may hold the lock.
func (w LockWait) holders(process *proc.Process, threads []savedThread, maps []*procfs.ProcMap) (found []int) {
	owner := w.owner(process)
	library := mappedAt(maps, w.call.PC)
	for i, t := range threads {
		status, err := proc.ReadStatus(t.TID)
		switch {
		case err != nil || t.Registers.waits():
		case status.ImagePID() == int(owner):
			found = slices.Insert(found, 0, i)
		case library != "" && mappedAt(maps, t.Registers.pc()) == library:
			found = append(found, i)
		}
	}
	return found
}

// mappedAt returns the file that is mapped at an address; empty if none is.
func mappedAt(maps []*procfs.ProcMap, address uint64) string {
	for _, m := range maps {
		if uint64(m.StartAddr) <= address && address < uint64(m.EndAddr) {
			return m.Pathname
		}
	}
	return ""
}

// stepping is the mask of a thread that is stepped: it takes no signal of its program's, but the kernel
// would take away the handlers of faults and traps that occur while they are blocked.
const stepping = allSignals &^ (1<<(unix.SIGTRAP-1) | 1<<(unix.SIGSEGV-1) | 1<<(unix.SIGBUS-1) | 1<<(unix.SIGFPE-1) | 1<<(unix.SIGILL-1) | 1<<(unix.SIGSYS-1))

func (m signalMask) isStepping() bool {
	const never = signalMask(1<<(unix.SIGKILL-1) | 1<<(unix.SIGSTOP-1))
	return m|never == stepping|never
}

// takeParked gives the parked thread of the loan its own registers, with which it does not run yet.
//
// The order here and in parkAgain is such that restore is right whenever we are killed: with the mask of
// a parked thread, the registers that were written down are the thread's own; with that of a stepped
// one, the thread has them itself.
func (l *loan) takeParked(ctx context.Context, process *proc.Process) (*borrowedThread, error) {
	t := l.threads[0]
	err := l.same(t)
	if err == nil {
		err = l.seize(t)
	}
	if err == nil {
		err = l.hold(ctx)
	}
	if err == nil && t.state == ended {
		err = proc.ErrGone
	}
	if err == nil {
		err = l.parkedMask.read(t.TID)
	}
	if err == nil && !l.parkedMask.isOurs() {
		err = errors.New("it is not parked")
	}
	if err == nil {
		err = process.ReadMemory(bytesOf(&l.value), l.word())
	}
	if err == nil {
		l.at("taken")
		err = t.Registers.write(t.TID)
	}
	if err == nil {
		l.at("own registers")
		err = stepping.write(t.TID)
	}
	return t, err
}

// parkAgain parks a thread that was stepped, after keep has written its registers down.
func (l *loan) parkAgain(process *proc.Process, t *borrowedThread, keep func() error) error {
	l.at("stepped")
	err := t.Registers.read(t.TID)
	if err == nil {
		err = leaveRestartableSequence(process, t.TID, &t.Registers)
	}
	if err == nil {
		err = keep()
	}
	if err == nil {
		l.at("kept")
		err = l.parkedMask.write(t.TID)
	}
	if err == nil {
		l.at("masked again")
		err = l.pointAtWait(t)
	}
	return err
}

// step steps a held thread until the wait is over, or until the thread cannot be the one that holds the
// lock: it has come far, would fault or make a system call that a memory allocator does not, or has come
// to the driver's code. It returns the stop in which it leaves the thread, if that is not an event stop.
func (l *loan) step(process *proc.Process, t *borrowedThread, most int, maps []*procfs.ProcMap, over func() bool) (last unix.WaitStatus) {
	for range most {
		var regs registers
		if regs.read(t.TID) != nil || drivers.IsLibcuda(mappedAt(maps, regs.pc())) {
			return last
		}
		isCall, err := isSyscallInstruction(process, regs.pc())
		if err != nil || isCall && !regs.mayCall() || singleStep(t.TID, stopToDeliver(last)) != nil {
			return last
		}
		t.state = running
		status, reported := awaitStep(l.pid, t.TID)
		if !reported {
			return 0
		}
		if !status.Stopped() {
			t.state, t.reaped = ended, true
			return 0
		}
		t.state, last = returned, status // in a stop, and not in one where registers may be put back
		l.at("step")
		if sig := unix.Signal(toDeliver(status)); sig != 0 && sig != unix.SIGTRAP && sig != unix.SIGSTOP {
			return last
		}
		if isCall && over() { // whoever waits is woken by a system call
			return last
		}
	}
	return last
}

func singleStep(tid, deliver int) error {
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SINGLESTEP, uintptr(tid), 0, uintptr(deliver), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// stopToDeliver returns the SIGSTOP of the process that a stepped thread was to take, else 0. It may be a
// surplus one of [proc.Stop], and the thread is stepped on in the group-stop. The trap of a step, and the
// signal of an instruction that faulted and is to be executed again later, are not delivered.
func stopToDeliver(status unix.WaitStatus) int {
	if sig := toDeliver(status); sig == int(unix.SIGSTOP) {
		return sig
	}
	return 0
}

// mayCall reports whether a thread that is about to make a system call may do so while the program
// should stand still: an allocator gets and returns memory by it, or unlocks.
func (r *registers) mayCall() bool {
	switch r.callNumber() {
	case unix.SYS_BRK, unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MREMAP, unix.SYS_MADVISE, unix.SYS_MPROTECT, unix.SYS_SCHED_YIELD:
		return true
	case unix.SYS_FUTEX:
		const private, wake = 128, 1
		return r.argument(1)&^private == wake
	}
	return false
}

// awaitStep waits for a thread to report its step. It gives up on one that waits in a system call.
func awaitStep(pid, tid int) (status unix.WaitStatus, reported bool) {
	const atOnce, patience = 50, 10_000
	for tries, waits := 0, 0; waits < patience; tries++ {
		status, reported, err := waitNoHang(tid)
		if err != nil || reported {
			return status, reported
		}
		if tries <= atOnce {
			continue
		}
		if stat, err := proc.ThreadStat(pid, tid); err != nil || stat.State != "R" { // else it has yet to get a CPU
			waits++
		}
		time.Sleep(100 * time.Microsecond)
	}
	return 0, false
}

// settle brings a thread that was stepped, and was left in the stop last, into an event stop.
func (l *loan) settle(ctx context.Context, t *borrowedThread, last unix.WaitStatus) error {
	switch t.state {
	case held: // it was not stepped
		return nil
	case ended:
		return proc.ErrGone
	}
	_ = unix.PtraceInterrupt(t.TID) // ESRCH: it was killed, which the next wait reports, here and below
	if t.state == returned {
		_ = unix.PtraceCont(t.TID, stopToDeliver(last))
	}
	for {
		status, reported, err := waitNoHang(t.TID)
		switch {
		case err == nil && !reported:
			if _, err := l.await(ctx); err != nil {
				return err
			}
			continue
		case err != nil || !status.Stopped():
			t.state, t.reaped = ended, true
			return proc.ErrGone
		case !isEventStop(status):
			_ = unix.PtraceInterrupt(t.TID)
			_ = unix.PtraceCont(t.TID, stopToDeliver(status))
			continue
		}
		now, err := proc.ReadStatus(t.TID)
		if err != nil {
			return err
		}
		if !now.Pending.Has(unix.SIGTRAP) {
			t.state, t.stopSignal = held, status.StopSignal()
			return nil
		}
		// The trap of a step into a system call that waited. Without an interrupt it comes first.
		_ = unix.PtraceCont(t.TID, 0)
	}
}
