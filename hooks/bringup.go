package hooks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/cudackpt"
)

// bringUp is the one way back. From whatever state the processes are in
// (running, locked or checkpointed; running, stopped or frozen) it takes them
// to running: stop, trace, check free memory, Restore with the members' pairs,
// Unlock, release, SIGCONT. Each step is done for all of them in parallel, and
// finished before the next begins. It may be cut off at any point and begun
// again.
//
// With criu's -s, and for processes that were stopped before we came, the GPU
// state is brought back and the process stays stopped.
//
// After an error the processes are in the group-stop, for the next try or for
// the caller's verdict.
func (h *Hook) bringUp(ctx context.Context, driver *cudackpt.Driver, s *Session, targets []*target) error {
	tracer := criuutil.NewTracer()
	defer tracer.Release(context.Background())
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"stop", func() error { return hold(ctx, targets) }},
		{"trace", func() error { return runRestoreThreads(ctx, tracer, targets) }},
		{"free memory", func() error { return requireMemoryFor(ctx, driver, targets) }},
		{"restore", func() error {
			return parallel(targets, func(t *target) error { return t.drive(ctx, cudackpt.StateLocked) })
		}},
		{"unlock", func() error {
			return parallel(targets, func(t *target) error { return t.drive(ctx, cudackpt.StateRunning) })
		}},
		{"release", func() error { return releaseThreads(ctx, tracer, targets) }},
		{"continue", func() error { return resumeThreads(targets, s.LeaveStopped) }},
	} {
		if err := s.timed(step.name, step.do); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// hold brings every thread into the group-stop, out of a freezer too: the
// queued SIGSTOP takes effect before a thawed thread runs on.
func hold(ctx context.Context, targets []*target) error {
	for _, t := range targets {
		if err := t.Signal(unix.SIGSTOP); err != nil && !errors.Is(err, criuutil.ErrGone) {
			return err
		}
	}
	for _, t := range targets {
		frozen, err := criuutil.FrozenBy(t.PID)
		if err != nil && !errors.Is(err, criuutil.ErrGone) {
			return err
		}
		for _, freezer := range frozen {
			if err := freezer.Thaw(ctx); err != nil {
				return err
			}
		}
	}
	return criuutil.WaitStopped(ctx, processesOf(targets)...)
}

// runRestoreThreads lets the threads through which the driver works run, while
// the rest of their processes stays stopped.
func runRestoreThreads(ctx context.Context, tracer *criuutil.Tracer, targets []*target) error {
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

// requireMemoryFor checks free memory for those that hold none now.
func requireMemoryFor(ctx context.Context, driver *cudackpt.Driver, targets []*target) error {
	need := make(map[cudackpt.UUID]uint64)
	for _, t := range targets {
		state, err := t.cuda.State(ctx)
		if err != nil {
			return err
		}
		if state == cudackpt.StateCheckpointed {
			t.member.addNeed(need)
		}
	}
	return requireMemory(ctx, driver, need)
}

// resumeThreads lets go on what was not stopped before we came.
func resumeThreads(targets []*target, leaveStopped bool) error {
	for _, t := range targets {
		if leaveStopped || t.member.Stopped {
			continue
		}
		if err := t.Signal(unix.SIGCONT); err != nil && !errors.Is(err, criuutil.ErrGone) {
			return err
		}
	}
	return nil
}

// releaseThreads puts the threads that a tracer let run back into the
// group-stop.
func releaseThreads(ctx context.Context, tracer *criuutil.Tracer, targets []*target) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := tracer.Release(ctx); err != nil {
		return err
	}
	return criuutil.WaitStopped(ctx, processesOf(targets)...)
}

// drive takes a target to state locked, or on to running. A checkpoint or
// restore that an earlier controller began goes on in the driver by itself
// after that controller was killed; until it is through, the driver answers
// with an illegal state, and the question is asked again.
func (t *target) drive(ctx context.Context, to cudackpt.State) error {
	for {
		state, err := t.cuda.State(ctx)
		switch {
		case err != nil:
			return err
		case state == cudackpt.StateCheckpointed:
			err = t.cuda.Restore(ctx, cudackpt.RestoreOptions{Pairs: t.member.Pairs})
		case state == cudackpt.StateRunning || state == to:
			return nil
		case state == cudackpt.StateLocked:
			err = t.cuda.Unlock(ctx)
		default:
			return fmt.Errorf("process %d (%s) is in CUDA state %v, from which the driver offers no way back", t.PID, t.member.Name, state)
		}
		if err != nil && !errors.Is(err, cudackpt.ResultIllegalState) {
			return err
		}
		if err != nil {
			select {
			case <-ctx.Done():
				return errors.Join(err, ctx.Err())
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
}

// addNeed adds the memory that the member's restore takes on the GPUs that it
// goes to.
func (m *Member) addNeed(need map[cudackpt.UUID]uint64) {
	to := make(map[cudackpt.UUID]cudackpt.UUID)
	for _, pair := range m.Pairs {
		to[pair.Old] = pair.New
	}
	for uuid, size := range m.MemoryBytes {
		if moved, ok := to[uuid]; ok {
			uuid = moved
		}
		need[uuid] += size
	}
}
