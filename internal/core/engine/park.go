package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"

	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
)

// A stop does not hold a checkpointed job: anybody's SIGCONT ends it (a logout, timeout(1), systemd,
// scancel), and a thread that then synchronizes with the GPU dies. So every thread of the tree is
// parked before the first checkpoint, and gets its own registers back after the last restore: see
// [inject.Parked]. They are in the session's directory and in the manifest. The restore threads, which
// run none of the job's code, are not parked.

// Park parks a process, except for the threads in except.
func Park(ctx context.Context, s *session.Session, process *proc.Process, except ...int) (*inject.Parked, error) {
	for {
		parked, err := inject.Park(ctx, process.PID, except, s.ParkedFile(process.PID))
		if err == nil {
			return &parked, nil
		}
		// A thread ended while we took hold of all of them: try again.
		if !errors.Is(err, proc.ErrGone) || !process.Alive() || ctx.Err() != nil {
			return nil, err
		}
	}
}

// hold parks the threads of a stopped process, except for those in except, whichever MoveMemory has parked already.
// In between, its stop alone holds it.
func hold(ctx context.Context, s *session.Session, t *Target, except ...int) (err error) {
	if t.Parked != nil && slices.Equal(t.unheld, except) {
		return nil
	}
	t.unheld = nil
	if err := returnThreads(ctx, t.PID, s.ParkedFile(t.PID)); err != nil {
		return err
	}
	if t.Parked, err = Park(ctx, s, t.Process, except...); err == nil {
		t.unheld = except
	}
	return err
}

// Park parks the CUDA processes. A process that cannot be parked (by this kernel or architecture, or
// because the run directory is full) is held by its stop alone.
func (s *Suspension) Park(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.Config.Lock.Timeout)
	defer cancel()
	return Parallel(s.Targets, func(t *Target) error {
		tid, err := t.CUDA.RestoreThreadID(ctx)
		if err != nil {
			return err
		}
		return s.ParkedOrStopped(ctx, t.Process, hold(ctx, s.Session, t, tid))
	})
}

// stepOut has the driver do something in a process whose other threads are parked. If its restore thread
// then waits for a lock that one of these holds, that one is let out of it. If that goes wrong, so does
// the whole, because a thread may not be parked any more.
func stepOut(ctx context.Context, s *session.Session, t *Target, do func() error) error {
	return stepOutFor(ctx, s, t, func() ([]int, error) {
		tid, err := t.CUDA.RestoreThreadID(ctx) // which answers at once
		return []int{tid}, err
	}, do)
}

// stepOutFor is stepOut for other threads that may wait.
func stepOutFor(ctx context.Context, s *session.Session, t *Target, waiters func() ([]int, error), do func() error) error {
	const look = 100 * time.Millisecond
	done := make(chan error, 1)
	go func() { done <- do() }()
	before := make(map[int]inject.LockWait)
	var failed error
	for {
		select {
		case err := <-done:
			return errors.Join(err, failed)
		case <-time.After(look):
		}
		tids, err := waiters()
		if err != nil {
			continue
		}
		waits := make(map[int]inject.LockWait)
		for _, tid := range tids {
			wait, is := inject.WaitsForLock(t.PID, tid)
			if !is || wait.HeldByOneOf(t.Process, tids) { // who goes on, and lets go of it
				continue
			}
			waits[tid] = wait
			if last, waited := before[tid]; !waited || last != wait {
				continue
			}
			err := t.prefault.without(ctx, func() error {
				parked, over, err := inject.StepOut(ctx, t.PID, wait, s.ParkedFile(t.PID))
				if errors.Is(err, fs.ErrNotExist) { // it is held by its stop alone
					return nil
				}
				if err == nil {
					t.Parked = &parked
					s.Env.Log.Debug("a lock of a thread that is stopped was waited for", "pid", t.PID, "over", over)
				}
				return err
			})
			if err != nil {
				failed = err
			}
			break
		}
		before = waits
	}
}

func (s *Suspension) ParkedOrStopped(ctx context.Context, process *proc.Process, err error) error {
	if err == nil || errors.Is(err, proc.ErrGone) {
		return nil
	}
	if ctx.Err() != nil {
		return err
	}
	// The park was neither finished nor undone, and an image would not know of it.
	if half, fileErr := inject.IsParked(s.Session.ParkedFile(process.PID)); half || fileErr != nil {
		return errors.Join(err, fileErr)
	}
	s.Log.Warn("a process is held only by SIGSTOP: it must not be sent SIGCONT until the dump is over", "pid", process.PID, "error", err)
	return nil
}

// requireHeld fails if a process that is not parked is no longer stopped: with its GPU state out it
// would die.
func (t *Target) requireHeld() error {
	if t.Parked != nil {
		return nil
	}
	stopped, err := proc.Stopped(t.PID)
	if err != nil || stopped {
		return err
	}
	if status, err := proc.ReadStatus(t.PID); err == nil && status.TracerPID != 0 {
		return fault.Because(inject.ErrNotStopped, fmt.Sprintf("%v is traced by process %d (a debugger?), so that it could not be parked", t.Process, status.TracerPID), "detach it, and try again")
	}
	return fmt.Errorf("%v: %w, and it could not be parked: make sure that nothing sends it SIGCONT, and try again", t.Process, inject.ErrNotStopped)
}

// parkUnparked parks the processes that are not parked yet: their image was made without parking, or
// somebody else has checkpointed them.
func (b *wayBack) parkUnparked(ctx context.Context) error {
	return b.parallel(func(t *Target) error {
		parked, err := inject.IsParked(b.ParkedFile(t.PID))
		if err != nil {
			return err
		}
		if parked {
			t.Parked = &inject.Parked{} // its file has the threads
			return nil
		}
		tid, err := t.CUDA.RestoreThreadID(ctx)
		if err != nil {
			return err
		}
		t.Parked, err = Park(ctx, b.Session, t.Process, tid)
		if err != nil && !errors.Is(err, proc.ErrGone) && ctx.Err() == nil {
			b.Env.Log.Warn("a process is held only by SIGSTOP: it must not be sent SIGCONT until it is restored", "pid", t.PID, "error", err)
		}
		return ctx.Err()
	})
}

// unpark gives the threads their own registers back. Nothing is checkpointed any more, so they may be
// continued from here on.
func (b *wayBack) unpark(ctx context.Context) error {
	// A child whose thread is still borrowed: the call that was under way is its last.
	for _, child := range b.Children {
		if err := returnThreads(ctx, child.PID, b.BorrowedFile(child.PID)); err != nil {
			return err
		}
	}
	for _, pid := range b.pids() {
		if err := returnThreads(ctx, pid, b.BorrowedFile(pid)); err != nil {
			return err
		}
		if b.Kind == journal.KindRestore {
			RearmTimers(b.Env.Log, pid)
		}
		if err := returnThreads(ctx, pid, b.ParkedFile(pid)); err != nil {
			return err
		}
	}
	return nil
}

// pids are those of all processes of the session.
func (b *wayBack) pids() []int {
	pids := PidsOf(b.all)
	for _, other := range b.Others {
		pids = append(pids, other.PID)
	}
	return pids
}

// returnThreads gives the threads in a file their own registers back. There may be no such file.
func returnThreads(ctx context.Context, pid int, saved string) error {
	if _, err := os.Lstat(saved); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	// A thread in a frozen group of cgroup v1 cannot be traced.
	if err := thaw(ctx, pid); err != nil {
		return err
	}
	return inject.ReturnThreads(ctx, saved)
}

// RearmTimers starts the periodic timers of processes again that expired in the stop: criu restores
// them dead.
func RearmTimers(log *slog.Logger, pids ...int) {
	for _, pid := range pids {
		process, err := proc.Open(pid)
		if err == nil {
			err = errors.Join(process.RearmTimers(), process.Close())
		}
		if err != nil && !errors.Is(err, proc.ErrGone) {
			log.Warn("a periodic timer (timerfd) of a process may have stopped for good", "pid", pid, "error", err)
		}
	}
}
