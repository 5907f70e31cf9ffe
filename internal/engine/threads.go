package engine

import (
	"context"
	"errors"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/inject"
	"cucriu/internal/proc"
	"cucriu/internal/session"
)

// runRestoreThreads lets the restore threads run, while the rest of their processes stays stopped. The
// driver works through these threads.
func runRestoreThreads(ctx context.Context, tracer *inject.Tracer, targets []*Target) error {
	for _, t := range targets {
		tid, err := t.CUDA.RestoreThreadID(ctx)
		if err != nil {
			return err
		}
		if err := tracer.Run(tid); err != nil {
			return err
		}
	}
	return nil
}

// runAllThreads lets every thread of a stopped process run, without a SIGCONT: the process and its
// parent would notice that.
func runAllThreads(tracer *inject.Tracer, t *Target) error {
	tids, err := proc.Threads(t.PID)
	if err != nil {
		return err
	}
	return tracer.Run(tids...)
}

// ReleaseTimeout bounds how long a traced thread may take to stop. If it takes longer, the kernel lets
// go of it when this program ends.
const ReleaseTimeout = 30 * time.Second

// ReleaseThreads puts the threads that a tracer let run back into the group-stop of their processes.
func ReleaseThreads(ctx context.Context, tracer *inject.Tracer, targets []*Target) error {
	ctx, cancel := context.WithTimeout(ctx, ReleaseTimeout)
	defer cancel()
	if err := tracer.Release(ctx); err != nil {
		return err
	}
	return proc.KeepStopped(ctx, ProcessesOf(targets)...)
}

func SignalAll(targets []*Target, signal unix.Signal) error {
	return session.SignalProcesses(signal, ProcessesOf(targets)...)
}

// Borrow borrows up to most threads of a stopped process, but not the thread except, and notes them in
// the file saved.
func Borrow(ctx context.Context, s *session.Session, t *Target, most, except int, saved string) (*inject.Borrowed, error) {
	tids, err := proc.Threads(t.PID)
	if err != nil {
		return nil, err
	}
	var lent []int
	for _, tid := range tids {
		if tid != except && len(lent) < most {
			lent = append(lent, tid)
		}
	}
	for {
		borrowed, err := inject.Borrow(ctx, t.PID, lent, saved)
		if !errors.Is(err, inject.ErrNotStopped) || ctx.Err() != nil {
			return borrowed, err
		}
		// Somebody has continued it.
		if err := t.requireHeld(); err != nil {
			return nil, err
		}
		if err := proc.KeepStopped(ctx, t.Process); err != nil {
			return nil, err
		}
	}
}

// CoresEach is how many threads work for each process. One process gets all cores. Several processes
// together get twice as many threads, because they do not begin together.
func (s *Suspension) CoresEach() int { return coresFor(len(s.Targets)) }

// mostCores is the largest number of threads that gain something for one process. A fill by 8, 16 and
// 32 threads was measured at 15, 23 and 31 GB/s.
const mostCores = 32

func coresFor(processes int) int {
	cores := runtime.NumCPU()
	return min(cores, mostCores, max(2, 2*cores/max(processes, 1)))
}

// fillsAtOnce is how many processes are filled in at once: few, so that the driver has the first soon,
// but enough to give work to the cores that one process cannot use.
func fillsAtOnce() int { return max(1, runtime.NumCPU()/mostCores) }
