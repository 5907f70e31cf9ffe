package hooks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/inject"
	"cucriu/criuutil/proc"
	"cucriu/cudackpt"
	"cucriu/hooks/journal"
)

// bringUp is the one way back. From whatever state the processes are in
// (running, locked or checkpointed; running, stopped or frozen) it takes them
// to running. Each step is done for all of them in parallel, and finished
// before the next begins. It may be cut off at any point and begun again.
//
// What may be checkpointed is restored with every other thread stopped, since a
// thread that synchronized would die. What is locked is unlocked with every
// thread running: the driver's unlock waits for ever for a thread that was
// stopped inside the driver, and a thread that runs is safe from the restore on.
// So whoever begins again after the restore stops nothing: an unlock that was
// given up may still be under way.
//
// A process that was stopped before we came, and all of them under criu's -s,
// stay stopped: their threads run under trace while they are unlocked. A
// container that was paused stays paused.
//
// After an error the processes are left as they are, for the next try or for
// the caller's verdict.
func (h *Hook) bringUp(ctx context.Context, driver *cudackpt.Driver, s *session, targets []*target) error {
	b := &bringUp{session: s, hook: h, driver: driver, all: targets, leaveStopped: s.LeavesStopped(), filling: make(chan struct{}, fillsAtOnce())}
	defer func() { _ = b.release(context.WithoutCancel(ctx)) }() // after an error
	var err error
	if b.paused, err = s.toPauseAgain(); err != nil {
		return err
	}
	if err := b.findCUDA(ctx); err != nil {
		return err
	}
	if s.MayBeCheckpointed() {
		for _, step := range []struct {
			name string
			do   func(context.Context) error
		}{
			{"stop", b.stop},
			{"park", b.park},
			{"trace", b.trace},
			{"restore", func(context.Context) error { return b.restore(ctx) }}, // as long as its parts take
			{"release", b.release},
		} {
			if err := b.do(ctx, step.name, step.do); err != nil {
				return err
			}
		}
		s.Restored = true
		h.note(s)
	}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"unpark", b.unpark},
		{"continue", b.letRun},
		{"unlock", b.unlock},
		{"release", b.release},
		{"others", b.letOthersRun},
		{"pause", b.pause},
	} {
		if err := b.do(ctx, step.name, step.do); err != nil {
			return err
		}
	}
	return nil
}

// bringUp is one run of the way back.
type bringUp struct {
	*session
	hook         *Hook
	driver       *cudackpt.Driver
	leaveStopped bool
	all          []*target // those that are alive
	cuda         []*target // of these, those that have CUDA state
	tracer       *inject.Tracer
	traced       []*target // those of which the tracer lets threads run
	paused       []proc.Freezer
	filling      chan struct{} // holds what is being filled in
}

// do does one step, within restore.timeout.
func (b *bringUp) do(ctx context.Context, name string, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, b.hook.Config.Restore.Timeout)
	defer cancel()
	err := b.failpoint(ctx, string(b.Kind)+".back."+name)
	if err == nil {
		err = b.timed(name, func() error { return step(ctx) })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// findCUDA parts the processes: one that has executed another program since
// has no CUDA state to bring back, and needs only to go on.
func (b *bringUp) findCUDA(ctx context.Context) error {
	b.all = slices.DeleteFunc(slices.Clone(b.all), func(t *target) bool { return !t.Alive() })
	for _, t := range b.all {
		_, err := t.cuda.RestoreThreadID(ctx)
		if errors.Is(err, cudackpt.ResultNotInitialized) && b.Kind != journal.KindRestore {
			continue
		}
		if err != nil {
			return err
		}
		b.cuda = append(b.cuda, t)
	}
	return nil
}

// stop brings every thread into the group-stop, out of a freezer too: the
// queued SIGSTOP takes effect before a thawed thread runs on.
func (b *bringUp) stop(ctx context.Context) error {
	if err := signalAll(b.cuda, unix.SIGSTOP); err != nil {
		return err
	}
	if err := thawAll(ctx, b.cuda); err != nil {
		return err
	}
	if err := proc.KeepStopped(ctx, processesOf(b.cuda)...); err != nil {
		return err
	}
	return b.parallel(func(t *target) error { return inject.ReturnBorrowed(ctx, b.borrowedFile(t.PID)) })
}

// trace lets the restore threads, and nothing else, run: of those processes
// that have all of their memory.
func (b *bringUp) trace(ctx context.Context) error {
	if err := b.parallel(func(t *target) error { return b.believe(ctx, t) }); err != nil {
		return err
	}
	b.tracer, b.traced = inject.NewTracer(), b.cuda
	return runRestoreThreads(ctx, b.tracer, slices.DeleteFunc(slices.Clone(b.cuda), (*target).lacksMemory))
}

// release puts the threads that were let run under trace back into the
// group-stop.
func (b *bringUp) release(ctx context.Context) error {
	if b.tracer == nil {
		return nil
	}
	if err := releaseThreads(ctx, b.tracer, b.traced); err != nil {
		return err
	}
	b.tracer = nil
	return nil
}

func (b *bringUp) goesOn(t *target) bool { return !b.leaveStopped && !t.member.Stopped }

// letRun lets every thread run, of those that stay stopped under trace.
func (b *bringUp) letRun(ctx context.Context) error {
	b.tracer, b.traced = inject.NewTracer(), nil
	if err := thawAll(ctx, b.all); err != nil {
		return err
	}
	for _, t := range b.all {
		if b.goesOn(t) {
			if err := signalProcesses(unix.SIGCONT, t.Process); err != nil {
				return err
			}
		}
	}
	for _, t := range b.cuda {
		if !b.goesOn(t) {
			b.traced = append(b.traced, t)
			if err := runAllThreads(b.tracer, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// unlock lets the GPU take work again.
func (b *bringUp) unlock(ctx context.Context) error {
	return b.parallel(func(t *target) error {
		state, err := t.cuda.State(ctx)
		switch {
		case err != nil || state == cudackpt.StateRunning:
			return err
		case state == cudackpt.StateLocked:
			return b.span(t.PID, "unlock", func() error { return t.cuda.Unlock(ctx) })
		}
		return fmt.Errorf("process %d (%s) is in CUDA state %v, from which nothing leads back here", t.PID, t.member.Name, state)
	})
}

// letOthersRun lets the processes without CUDA run that a restore has held back.
func (b *bringUp) letOthersRun(context.Context) error {
	if b.leaveStopped {
		return nil
	}
	return signalKnown(unix.SIGCONT, b.Others...)
}

// pause freezes a container again that was paused before.
func (b *bringUp) pause(ctx context.Context) error { return freezeAll(ctx, b.paused) }

// parallel does a step for every process with CUDA state. One that ends
// meanwhile has no way back and needs none, unless it was to be restored.
func (b *bringUp) parallel(do func(*target) error) error {
	return parallel(b.cuda, func(t *target) error {
		err := do(t)
		if err != nil && b.Kind != journal.KindRestore && !t.Alive() {
			return nil
		}
		return err
	})
}
