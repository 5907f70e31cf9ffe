package hooks

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/inject"
	"cucriu/internal/proc"
)

// runRestoreThreads lets the restore threads run, while the rest of their processes stays
// stopped. The driver works through these threads.
func runRestoreThreads(ctx context.Context, tracer *inject.Tracer, targets []*target) error {
	for _, t := range targets {
		tid, err := t.cuda.RestoreThreadID(ctx)
		if err != nil {
			return err
		}
		if err := tracer.Run(tid); err != nil {
			return err
		}
	}
	return nil
}

// runAllThreads lets every thread of a stopped process run, without a SIGCONT: the process
// and its parent would notice that.
func runAllThreads(tracer *inject.Tracer, t *target) error {
	tids, err := proc.Threads(t.PID)
	if err != nil {
		return err
	}
	return tracer.Run(tids...)
}

// releaseTimeout bounds how long a traced thread may take to stop. If it takes longer, the
// kernel lets go of it when this program ends.
const releaseTimeout = 30 * time.Second

// releaseThreads puts the threads that a tracer let run back into the
// group-stop of their processes.
func releaseThreads(ctx context.Context, tracer *inject.Tracer, targets []*target) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	if err := tracer.Release(ctx); err != nil {
		return err
	}
	return proc.KeepStopped(ctx, processesOf(targets)...)
}

func signalAll(targets []*target, signal unix.Signal) error {
	return signalProcesses(signal, processesOf(targets)...)
}

// signalProcesses sends a signal to those that have not ended.
func signalProcesses(signal unix.Signal, processes ...*proc.Process) error {
	for _, p := range processes {
		if err := p.Signal(signal); err != nil && !errors.Is(err, proc.ErrGone) {
			return err
		}
	}
	return nil
}

// signalKnown sends a signal to those that have not ended. A new process that has got one
// of their pids does not get it.
func signalKnown(signal unix.Signal, known ...proc.Ident) error {
	for _, id := range known {
		process, err := proc.Reopen(id)
		if err == nil {
			err = errors.Join(process.Signal(signal), process.Close())
		}
		if err != nil && !errors.Is(err, proc.ErrGone) {
			return err
		}
	}
	return nil
}

// thawAll thaws whatever keeps the processes frozen.
func thawAll(ctx context.Context, targets []*target) error {
	for _, t := range targets {
		if err := thaw(ctx, t.PID); err != nil {
			return err
		}
	}
	return nil
}
