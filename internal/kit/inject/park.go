package inject

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// Parked describes threads that wait in the kernel instead of running their program, and
// holds what each of them needs to continue.
//
// A stop alone does not hold a process, because any SIGCONT ends it. A parked thread that
// is continued enters an endless futex(2) wait with its signals blocked, and executes no
// instruction of its program. Only its registers and its signal mask are changed, so no
// process has to stay behind for it: it stays parked whichever process is killed, while
// other tracers come and go, and through criu's dump and restore.
type Parked struct {
	savedThreads
	// Arch is the architecture of the registers, as in GOARCH.
	Arch string `json:"arch"`
}

// Park parks the threads of a process except those in except. It first writes what they
// need to continue into the file saved, for [ReturnThreads], which unparks them. The file must not
// exist yet. The process must be as [Borrow] requires, but need not be stopped.
//
// Park fails with [proc.ErrGone] if the process has ended, and with [ErrFiltered] if a
// seccomp filter would not let a thread wait. A failed Park changes nothing, unless the file
// exists afterwards: then ReturnThreads restores the threads.
func Park(ctx context.Context, pid int, except []int, saved string) (Parked, error) {
	return parkIn(ctx, pid, except, saved, func(string) {})
}

// parkIn is Park. It calls at with the name of each point at which it matters what is left
// behind if we are killed.
func parkIn(ctx context.Context, pid int, except []int, saved string, at func(string)) (Parked, error) {
	process, err := proc.Open(pid)
	if err != nil {
		return Parked{}, fmt.Errorf("park: %w", err)
	}
	defer process.Close()
	tids, err := threadsBut(pid, except)
	if err != nil {
		return Parked{}, fmt.Errorf("park: %w", err)
	}
	l, err := startTaking(process, tids, saved, findParkingInstruction, at)
	if err != nil {
		return Parked{}, fmt.Errorf("park: %w", err)
	}
	err = l.do(func() error {
		defer func() { l.over = true }()
		if err := l.takeEvery(ctx, process, except); err != nil {
			return err
		}
		return l.park()
	})
	<-l.done
	if err != nil {
		return Parked{}, fmt.Errorf("park: %w", err)
	}
	return newParked(l.savedThreads()), nil
}

func newParked(threads savedThreads) Parked {
	return Parked{savedThreads: threads, Arch: runtime.GOARCH}
}

// takeEvery is take for all threads of a process that may run and create more threads
// meanwhile.
func (l *loan) takeEvery(ctx context.Context, process *proc.Process, except []int) error {
	for found := l.threads; len(found) > 0; {
		err := l.seizeAll(found)
		if err == nil {
			err = l.hold(ctx)
		}
		known := slices.Clone(except)
		l.threads = slices.DeleteFunc(l.threads, func(t *borrowedThread) bool { return t.state == ended })
		for _, t := range l.threads {
			known = append(known, t.TID)
		}
		var tids []int
		if err == nil {
			tids, err = threadsBut(l.pid, known)
		}
		if err != nil {
			l.detach()
			return err
		}
		found = nil
		for _, tid := range tids {
			found = append(found, &borrowedThread{savedThread: savedThread{TID: tid}})
		}
		l.threads = append(l.threads, found...)
	}
	l.at("seized")
	return l.keep(process)
}

func threadsBut(pid int, except []int) ([]int, error) {
	tids, err := proc.Threads(pid)
	return slices.DeleteFunc(tids, func(tid int) bool { return slices.Contains(except, tid) }), err
}

// pointAtWait gives a thread registers that make it wait forever.
func (l *loan) pointAtWait(t *borrowedThread) error {
	regs := l.waiting(t)
	return regs.write(t.TID)
}

func (l *loan) waiting(t *borrowedThread) registers {
	const privateWait = 0 | 128 // FUTEX_WAIT | FUTEX_PRIVATE_FLAG
	const noTimeLimit = 0
	return t.Registers.calling(l.instruction, unix.SYS_FUTEX, l.word(), privateWait, uint64(l.value), noTimeLimit)
}

// word is the address on which the threads wait. It lies in code, so nobody changes the
// word and nobody wakes its waiters.
func (l *loan) word() uint64 { return l.instruction &^ 3 }

// park points every thread at the wait and releases it.
func (l *loan) park() error {
	status, err := proc.ReadStatus(l.pid)
	if err == nil {
		err = l.requireWaitAllowed(status.Seccomp)
	}
	if err != nil {
		return errors.Join(err, l.putBack())
	}
	mask := allSignals
	if !status.Caught.Has(unix.SIGCONT) {
		// Without a handler, SIGCONT would run no code here. Blocked, it could stay
		// pending, and an image with a pending SIGCONT makes criu's restore fail.
		mask &^= 1 << (unix.SIGCONT - 1)
	}
	for _, t := range l.threads {
		err := l.pointAtWait(t)
		if err == nil {
			err = mask.write(t.TID)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return errors.Join(fmt.Errorf("thread %d of process %d: %w", t.TID, l.pid, err), l.putBack())
		}
		l.at("parked")
	}
	l.detach()
	return nil
}

// Continue ends the stop of a parked process; its threads go on waiting. It may leave a
// signal pending, which runs no code.
func (p Parked) Continue(process *proc.Process) error {
	if err := process.Signal(unix.SIGCONT); err != nil {
		return err
	}
	status, err := proc.ReadStatus(process.PID)
	if err != nil || !status.Caught.Has(unix.SIGCONT) {
		return err
	}
	// A SIGCONT that is pending in an image makes criu's restore fail. A SIGTSTP cancels
	// it, and the SIGCONT that follows ReturnThreads cancels the SIGTSTP.
	return process.Signal(unix.SIGTSTP)
}

// LooksParked reports whether a process seems to be parked, judged without the file: its
// first thread blocks every signal that can be blocked, or all but SIGCONT. Programs do not
// do that.
func LooksParked(pid int) (bool, error) {
	status, err := proc.ReadStatus(pid)
	never := proc.SignalSet(1<<(unix.SIGKILL-1) | 1<<(unix.SIGSTOP-1) | 1<<(unix.SIGCONT-1))
	return status.Blocked|never == ^proc.SignalSet(0), err
}

// IsParked reports whether the file saved exists, which means that the threads of a process
// are parked.
func IsParked(saved string) (bool, error) {
	_, err := os.Lstat(saved)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// ForImage returns the description as a dump's image needs it: the process and its threads
// have the ids of their innermost pid namespace, by which criu's images know them.
func (p Parked) ForImage() (Parked, error) {
	threads := slices.Clone(p.Threads)
	for i, t := range threads {
		status, err := proc.ReadStatus(t.TID)
		if err != nil {
			return Parked{}, err
		}
		threads[i].TID, threads[i].StartTime = status.ImagePID(), 0
	}
	status, err := proc.ReadStatus(p.PID)
	p.PID, p.Threads = status.ImagePID(), threads
	return p, err
}

// Validate refuses a description that no dump on this architecture can have written.
func (p Parked) Validate() error {
	const most = 1 << 17 // threads
	switch {
	case p.Arch != runtime.GOARCH:
		return fmt.Errorf("its threads are of architecture %q, and this is %s", p.Arch, runtime.GOARCH)
	case p.PID <= 0 || p.Instruction == 0 || len(p.Threads) == 0 || len(p.Threads) > most:
		return errors.New("its parked threads are not complete")
	}
	for _, t := range p.Threads {
		if t.TID <= 0 {
			return fmt.Errorf("a parked thread has the id %d", t.TID)
		}
	}
	return nil
}

// WriteRestored writes the file with which [ReturnThreads] finds the parked threads of an image in the
// process that criu has restored from it.
func (p Parked) WriteRestored(process *proc.Process, saved string) error {
	tids, err := proc.Threads(process.PID)
	if err != nil {
		return err
	}
	byImage := make(map[int]savedThread)
	for _, t := range p.Threads {
		byImage[t.TID] = t
	}
	restored := savedThreads{PID: process.PID, Instruction: p.Instruction}
	for _, tid := range tids {
		status, err := proc.ReadStatus(tid)
		if err != nil {
			return err
		}
		t, parked := byImage[status.ImagePID()]
		if !parked {
			continue
		}
		stat, err := proc.ThreadStat(process.PID, tid)
		if err != nil {
			return err
		}
		t.TID, t.StartTime = tid, stat.Starttime
		restored.Threads = append(restored.Threads, t)
	}
	if len(restored.Threads) != len(p.Threads) {
		return fmt.Errorf("%v has %d of the %d threads that the image says are parked", process, len(restored.Threads), len(p.Threads))
	}
	return restored.write(saved)
}
