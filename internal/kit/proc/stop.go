package proc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ThreadStates returns the state letter of every thread of a process, as /proc/PID/stat
// shows it.
func ThreadStates(pid int) (string, error) {
	tids, err := Threads(pid)
	if err != nil {
		return "", err
	}
	states := ""
	for _, tid := range tids {
		stat, err := procStat(tid)
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			return "", err
		}
		states += stat.State
	}
	return states, nil
}

// CPUTime returns how long the threads of a process have had a CPU, to a hundredth of a second; 0 if it
// has ended.
func CPUTime(pid int) time.Duration {
	stat, err := procStat(pid)
	if err != nil {
		return 0
	}
	return time.Duration(stat.CPUTime() * float64(time.Second))
}

// Stopped reports whether every thread of a process is in the group-stop (state T) or in a
// ptrace-stop (t), or has ended.
func Stopped(pid int) (bool, error) {
	running, err := runningThread(pid)
	return err == nil && running == 0, err
}

// runningThread returns a thread of a process that is not stopped, or 0 if there is none.
func runningThread(pid int) (int, error) {
	tids, err := Threads(pid)
	if err != nil {
		return 0, err
	}
	for _, tid := range tids {
		if stopped, err := threadStopped(tid); err != nil || !stopped {
			return tid, err
		}
	}
	return 0, nil
}

// threadStopped reports whether a thread is stopped or has ended. It is true for tid 0,
// which names no thread.
func threadStopped(tid int) (bool, error) {
	if tid == 0 {
		return true, nil
	}
	stat, err := procStat(tid)
	if errors.Is(err, ErrGone) {
		return true, nil
	}
	return slices.Contains([]string{"T", "t", "Z", "X", "x"}, stat.State), err
}

// Stop sends SIGSTOP to the processes and waits until every thread of each is stopped. A
// process that ends meanwhile counts as stopped.
func Stop(ctx context.Context, procs ...*Process) error {
	for _, p := range procs {
		if err := p.Signal(unix.SIGSTOP); err != nil && !errors.Is(err, ErrGone) {
			return err
		}
	}
	return AwaitStopped(ctx, procs, procs...)
}

// AwaitStopped is [KeepStopped] for processes of which some may be children of others. One that waits for
// its vfork child to execute a program does not stop before that. If the child was stopped on the way there,
// it is continued for a moment.
func AwaitStopped(ctx context.Context, children []*Process, procs ...*Process) error {
	const patience = 50 * time.Millisecond
	for {
		soon, cancel := context.WithTimeout(ctx, patience)
		err := KeepStopped(soon, procs...)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		for _, child := range children {
			status, err := ReadStatus(child.PID)
			if err != nil || !slices.ContainsFunc(procs, func(p *Process) bool { return p.PID == status.PPID }) {
				continue
			}
			if states, err := ThreadStates(status.PPID); err != nil || !strings.Contains(states, "D") {
				continue
			}
			// Only such a child shares the memory. Of one that waits for a disk, the children are held for a reason.
			if memory, _, err := SharedTables(status.PPID, child.PID); err != nil || !memory {
				continue
			}
			for _, sig := range []unix.Signal{unix.SIGCONT, unix.SIGSTOP} {
				if err := child.Signal(sig); err != nil && !errors.Is(err, ErrGone) {
					return err
				}
				time.Sleep(time.Millisecond) // there is no event for a stranger's exec
			}
		}
	}
}

// WaitStopped waits until every thread of each process is stopped. The kernel reports a
// stop only to the parent and the tracer, so WaitStopped polls.
func WaitStopped(ctx context.Context, procs ...*Process) error {
	for _, p := range procs {
		running := 0 // the thread last seen running: as long as it runs, the others need not be read
		for pause := 200 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
			stopped, err := threadStopped(running)
			if stopped && err == nil {
				running, err = runningThread(p.PID)
			}
			if errors.Is(err, ErrGone) || err == nil && running == 0 {
				break
			}
			if err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%v has threads that do not stop (a system call that cannot be interrupted?): %w", p, ctx.Err())
			case <-time.After(pause):
			}
		}
	}
	return nil
}

// Exiting reports whether the process has ended, or is ending and will run no more code of
// its own: it was killed, is exiting, or is a zombie.
func (p *Process) Exiting() bool {
	const pfExiting = 0x4 // PF_EXITING in the kernel's include/linux/sched.h
	if !p.Alive() {
		return true
	}
	stat, err := procStat(p.PID)
	if errors.Is(err, ErrGone) || stat.Flags&pfExiting != 0 || stat.State == "Z" || stat.State == "X" {
		return true
	}
	status, err := ReadStatus(p.PID) // on a busy machine a SIGKILL takes its time
	return errors.Is(err, ErrGone) || status.Pending.Has(unix.SIGKILL)
}

// IsEnding is [Process.Exiting] for a pid, of which there may be no process any more.
func IsEnding(pid int) bool {
	p, err := Open(pid)
	if err != nil {
		return errors.Is(err, ErrGone)
	}
	defer p.Close()
	return p.Exiting()
}

// KeepStopped waits until every thread of processes that were stopped is stopped again. A
// thread that a tracer releases falls back into the group-stop by itself. If somebody has
// continued the process meanwhile, KeepStopped stops it again. A process that ends
// meanwhile counts as stopped.
func KeepStopped(ctx context.Context, procs ...*Process) error {
	const fallsBack = 20 * time.Millisecond // a released thread takes less than this
	for {
		soon, cancel := context.WithTimeout(ctx, fallsBack)
		err := WaitStopped(soon, procs...)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		// A surplus SIGSTOP stays pending until SIGCONT removes it. criu heeds neither.
		for _, p := range procs {
			if stopped, err := Stopped(p.PID); err != nil || stopped {
				continue // it has ended, or WaitStopped will report the error
			}
			if err := p.Signal(unix.SIGSTOP); err != nil && !errors.Is(err, ErrGone) {
				return err
			}
		}
	}
}
