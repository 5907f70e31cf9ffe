package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/hooks/config"
	"cucriu/internal/core/gpumap"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/netlock"
	"cucriu/internal/kit/proc"
)

// BringBack is the one way back. It takes the processes from whatever state they are in (running,
// locked or checkpointed; running, stopped or frozen) to running. Each step is finished for all of them
// before the next begins. It may be cut off at any point and begun again.
//
// A process that may be checkpointed is restored with all its other threads stopped, because a thread
// that synchronized would die. A locked one is unlocked with every thread running: the driver's unlock
// waits without end for a thread that was stopped inside the driver, and from the restore on a thread
// may run safely. So a run that begins again after the restore stops nothing.
//
// A process that was stopped before we came stays stopped, and so do all of them under criu's -s: their
// threads run under trace while they are unlocked. A container that was paused stays paused. After an
// error the processes are left as they are.
//
// A driver call that was given up may still be under way. Its process waits for it, and while GPU state is out all
// others wait, too. Otherwise every process runs, and the others use their GPUs. A restore waits in any case.
func BringBack(ctx context.Context, driver *cudackpt.Driver, s *session.Session, targets []*Target) error {
	b := &wayBack{Session: s, driver: driver, all: targets, toPause: s.Paused, leaveStopped: s.LeavesStopped(), atOnce: make(chan struct{}, fillsAtOnce())}
	ctx, endChecks := context.WithCancel(ctx)
	defer func() { // after an error
		endChecks()
		for _, t := range b.cuda {
			_ = t.awaitCheck()
		}
		_ = b.release(context.WithoutCancel(ctx))
	}()
	if s.Refrozen() {
		var err error
		if b.toPause, err = proc.FrozenOf(s.Paused); err != nil {
			return err
		}
	}
	if err := b.findCUDA(ctx); err != nil {
		return err
	}
	if s.MayBeCheckpointed() && !b.nothingMoved() {
		if err := b.restoreState(ctx); err != nil {
			return err
		}
		s.Restored = true
		s.Note()
	}
	if s.Kind == journal.KindRestore && s.Hold.Undecided() {
		return ErrHeld
	}
	return b.doAll(ctx, []session.Step{
		{Name: "connections", Do: b.releaseConnections},
		{Name: "unpark", Do: b.unpark},
		{Name: "continue", Do: b.letRun},
		{Name: "unlock", Do: b.unlockTargets},
		{Name: "open", Do: b.openGates},
		{Name: "release", Do: b.release},
		{Name: "others", Do: b.letOthersOfRestoreRun},
		{Name: "pause", Do: b.pause},
	})
}

// restoreState gives the processes their GPU state back, with all their other threads stopped.
func (b *wayBack) restoreState(ctx context.Context) error {
	if len(b.cuda) == 0 {
		return nil
	}
	err := b.doAll(ctx, []session.Step{
		{Name: "stop", Do: b.stop},
		{Name: "park", Do: b.parkUnparked},
		{Name: "trace", Do: b.trace},
		{Name: session.StepRestoreGPU, Do: func(context.Context) error { return b.restore(ctx) }}, // its parts have timeouts of their own
		{Name: "release", Do: b.release},
		{Name: "move", Do: func(context.Context) error { return b.moveBack(ctx) }}, // as well
		{Name: "hold", Do: b.holdAgain},
	})
	if err != nil {
		return err
	}
	// Not before the memory is filled in: what is bound to one NUMA node might not have room there.
	return b.within(ctx, b.askAgain)
}

// ErrHeld ends the way back at the point where a held restore waits for its decision.
var ErrHeld = errors.New("the job is complete, and held until the migration is decided")

// wayBack is one run of the way back.
type wayBack struct {
	*session.Session
	driver       *cudackpt.Driver
	leaveStopped bool
	all          []*Target // those that are alive
	cuda         []*Target // those of all that have CUDA state
	tracer       *inject.Tracer
	traced       []*Target // those whose threads the tracer lets run
	toPause      []proc.Freezer
	atOnce       chan struct{} // one element for each process that is being filled in
}

// doAll does steps one after another, each within restore.timeout.
func (b *wayBack) doAll(ctx context.Context, steps []session.Step) error {
	for _, step := range steps {
		name := string(step.Name)
		ctx, cancel := b.Env.Config.Restore.Within(ctx)
		err := b.Failpoint(ctx, string(b.Kind)+".back."+name)
		if err == nil {
			err = b.Timed(name, func() error { return step.Do(ctx) })
		}
		err = session.GivenUp(ctx, err)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// findCUDA finds the processes that have CUDA state. A process that has executed another program since
// has none to bring back, and only needs to continue.
func (b *wayBack) findCUDA(ctx context.Context) error {
	b.all = slices.DeleteFunc(slices.Clone(b.all), func(t *Target) bool { return !t.Alive() })
	for _, t := range b.all {
		_, err := t.CUDA.RestoreThreadID(ctx)
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

// stop brings every thread into the group-stop, out of a freezer too: the SIGSTOP is queued before the
// thaw, and takes effect before a thawed thread runs on.
func (b *wayBack) stop(ctx context.Context) error {
	if err := proc.SignalAll(unix.SIGSTOP, ProcessesOf(b.cuda)...); err != nil {
		return err
	}
	if err := thawAll(ctx, b.cuda); err != nil {
		return err
	}
	if err := proc.KeepStopped(ctx, ProcessesOf(b.cuda)...); err != nil {
		return err
	}
	return b.parallel(func(t *Target) error { return inject.ReturnThreads(ctx, b.BorrowedFile(t.PID)) })
}

// trace lets the restore threads run, and nothing else. It leaves out the processes that lack memory:
// restore lets their threads run once the memory is filled in.
func (b *wayBack) trace(ctx context.Context) error {
	if err := b.parallel(func(t *Target) error { return b.findLack(ctx, t) }); err != nil {
		return err
	}
	b.takeKept()
	b.tracer, b.traced = inject.NewTracer(), b.cuda
	whole := slices.DeleteFunc(slices.Clone(b.cuda), func(t *Target) bool { return t.lacks == lacksAll })
	if err := runRestoreThreads(ctx, b.tracer, whole); err != nil || b.Step != journal.StepMove {
		return err
	}
	// A lock may be under way, which needs the driver's other threads. The driver has checkpointed nothing yet.
	for _, t := range whole {
		if _, err := t.findAgent(); err != nil || t.agent == nil {
			continue // the steps that need it say why
		}
		tids, err := t.agent.DriverThreads()
		if err == nil {
			err = b.tracer.Run(tids...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// release puts the threads that run under trace back into the group-stop.
func (b *wayBack) release(ctx context.Context) error {
	if b.tracer == nil {
		return nil
	}
	if err := ReleaseThreads(ctx, b.tracer, b.traced); err != nil {
		return err
	}
	b.tracer = nil
	return nil
}

func (b *wayBack) goesOn(t *Target) bool { return !b.leaveStopped && !t.Member.Stopped }

// letRun lets every thread run. The processes that stay stopped run under trace. Those without CUDA wait for the end
// of a restore, which may yet fail: they could write to files before its tree is killed.
func (b *wayBack) letRun(ctx context.Context) error {
	b.tracer, b.traced = inject.NewTracer(), nil
	if err := thawAll(ctx, b.all); err != nil {
		return err
	}
	for _, t := range b.all {
		if b.goesOn(t) {
			if err := proc.SignalAll(unix.SIGCONT, t.Process); err != nil {
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
	if b.Kind == journal.KindRestore {
		return nil
	}
	return b.letOthersRun(ctx)
}

// unlockTargets unlocks what is locked: the GPU takes work again. A process whose driver does not answer keeps no
// other one's gate closed, except in a restore, which may yet fail.
func (b *wayBack) unlockTargets(ctx context.Context) error {
	if b.Kind == journal.KindRestore {
		return b.parallel(func(t *Target) error { return b.unlockTarget(ctx, t) })
	}
	if b.By != session.ByWatcher { // for which nobody waits
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, b.Env.Config.Lock.Timeout)
		defer cancel()
	}
	return b.parallel(func(t *Target) error {
		if err := b.unlockTarget(ctx, t); err != nil {
			return b.unanswered(ctx, t, "cannot use its GPUs", err)
		}
		return b.openGate(ctx, t)
	})
}

func (b *wayBack) unlockTarget(ctx context.Context, t *Target) error {
	state, err := t.CUDA.State(ctx)
	switch {
	case err != nil || state == cudackpt.StateRunning:
		return err
	case state == cudackpt.StateLocked:
		return b.SpanOf(t.PID, "unlock", func() error { return t.CUDA.Unlock(ctx) })
	}
	return fmt.Errorf("process %d (%s) is %v, but not by this session: restore it with the tool that checkpointed it, and the watcher unlocks it", t.PID, t.Member.Name, state)
}

const staysStopped = "stays stopped"

// unanswered says in an error what becomes of a process while the driver does not answer. One of a restore is killed.
func (b *wayBack) unanswered(ctx context.Context, t *Target, how string, err error) error {
	if call := new(cudackpt.InterruptedError); b.Kind == journal.KindRestore || !errors.As(err, &call) {
		return err
	}
	const text = "process %d (%s) %s until the driver answers: %w"
	return fmt.Errorf(text, t.PID, t.Member.Name, how, session.GivenUp(ctx, err))
}

// letOthersOfRestoreRun continues the processes without CUDA of a restore, which is complete.
func (b *wayBack) letOthersOfRestoreRun(ctx context.Context) error {
	if b.Kind != journal.KindRestore {
		return nil
	}
	return b.letOthersRun(ctx)
}

// letOthersRun continues the processes without CUDA that the session has stopped.
func (b *wayBack) letOthersRun(context.Context) error {
	if b.leaveStopped {
		return nil
	}
	return session.SignalKnown(unix.SIGCONT, b.Others...)
}

// pause freezes a container again if it was paused before.
func (b *wayBack) pause(ctx context.Context) error { return FreezeAll(ctx, b.toPause) }

// parallel does a step for every process with CUDA state. A process that ends meanwhile has no way back
// and needs none; only on a restore is its end an error.
func (b *wayBack) parallel(do func(*Target) error) error {
	return Parallel(b.cuda, func(t *Target) error {
		err := do(t)
		if err != nil && b.hasEnded(t) {
			return nil
		}
		return err
	})
}

// releaseConnections gives the tree back the TCP connections that criu held back for its dump, if criu
// was killed or was to leave the tree stopped. Without them, the job resumes all the same.
func (b *wayBack) releaseConnections(ctx context.Context) error {
	if b.Kind != journal.KindDump {
		return nil
	}
	locks, err := FindLocks(&b.Record)
	if err == nil {
		err = locks.Release(ctx)
		locks.Close()
	}
	if err != nil {
		b.Env.Log.Warn("TCP connections of the job may still be blocked", "session", b.Name(), "error", err)
	}
	return nil
}

func FindLocks(r *journal.Record) (*netlock.Locks, error) {
	tree, err := session.OpenTree(r)
	defer proc.CloseAll(tree)
	if err != nil {
		return nil, err
	}
	return netlock.Find(tree)
}

// CompleteRestore does the driver's part of post-resume.
func CompleteRestore(ctx context.Context, s *session.Session) error {
	driver, targets, err := OpenTargets(s)
	if err != nil {
		return err
	}
	defer CloseTargets(targets)
	if len(targets) != len(s.Members) {
		return fmt.Errorf("%d of the %d restored CUDA processes ended before their GPU state was restored", len(s.Members)-len(targets), len(s.Members))
	}
	if len(targets) > 0 && !s.Restored && s.Plan == nil {
		gpus := config.GPUs{Map: s.Map, Unmapped: s.Unmapped}
		if s.Unmapped == "" {
			gpus = s.Env.Config.GPUs
		}
		if err := PlanPairs(driver, s, gpus); err != nil {
			return err
		}
		s.Note() // before it is used: whoever comes after us follows it
	}
	return BringBack(ctx, driver, s, targets)
}

// PlanPairs makes the plan from a GPU map and the GPUs that the processes see now, and gives every member its pairs.
// It is recorded when the session is written next.
func PlanPairs(driver *cudackpt.Driver, s *session.Session, gpus config.GPUs) error {
	visible, err := SeenByAll(driver, s.Members)
	if err != nil {
		return err
	}
	var captured []cudackpt.GPU
	for _, member := range s.Members {
		captured = cudackpt.Union(captured, member.GPUs)
	}
	plan, err := gpumap.Make(captured, visible, gpus.Map, gpus.Unmapped)
	if err != nil {
		return err
	}
	s.Plan = plan.Pairs()
	for i := range s.Members {
		s.Members[i].Pairs = s.Plan.Of(s.Members[i].GPUs)
	}
	return nil
}

// SeenByAll returns the GPUs that every one of these processes sees. A container may see less than its host.
func SeenByAll(driver *cudackpt.Driver, members []journal.Member) (visible []cudackpt.GPU, err error) {
	for i, member := range members {
		sees, err := driver.VisibleGPUs(member.PID)
		if err != nil {
			return nil, fmt.Errorf("process %d (%s): %w", member.PID, member.Name, err)
		}
		if i == 0 {
			visible = sees
		}
		visible = slices.DeleteFunc(visible, func(gpu cudackpt.GPU) bool { return !slices.Contains(sees, gpu) })
	}
	return visible, nil
}

// memoryNeed returns how much GPU memory the restore of the checkpointed processes will take, on the GPUs of the plan.
func (b *wayBack) memoryNeed(ctx context.Context) (inspect.MemoryNeed, error) {
	ctx, cancel := b.Env.Config.Restore.Within(ctx)
	defer cancel()
	need := make(inspect.MemoryNeed)
	for _, t := range b.cuda {
		if t.lacks != lacksAll {
			// A checkpoint or restore continues by itself after the program that began it was killed. The
			// driver answers when it is through.
			var state cudackpt.State
			err := stepOut(ctx, b.Session, t, func() (err error) {
				state, err = t.CUDA.State(ctx)
				return err
			})
			if err == nil && state == cudackpt.StateCheckpointed {
				err = t.measureStaged()
			}
			if err != nil {
				return nil, b.unanswered(ctx, t, staysStopped, err)
			}
			if state != cudackpt.StateCheckpointed {
				continue
			}
		}
		if len(t.Member.Pairs) > 0 {
			// A GPU of the plan that has gone is no reason for another plan: others may follow this one already.
			visible, err := b.driver.VisibleGPUs(t.PID)
			if err == nil {
				t.pairs, err = t.Member.Pairs.For(visible)
			}
			if err != nil {
				return nil, fmt.Errorf("process %d (%s): %w", t.PID, t.Member.Name, err)
			}
		}
		need.Add(t.lackedMemory(), t.Member.Pairs)
	}
	return need, nil
}

// restore moves the GPU state of the checkpointed processes back, if the GPUs have the memory for all
// of them. While the driver works on the first process, the memory of the next is filled in.
func (b *wayBack) restore(ctx context.Context) error {
	need, err := b.memoryNeed(ctx)
	if err != nil {
		return err
	}
	room := sync.OnceValue(func() error {
		ctx, cancel := b.Env.Config.Restore.Within(ctx)
		defer cancel()
		return b.SpanOf(0, "free memory", func() error {
			if err := b.Failpoint(ctx, string(b.Kind)+".back.free memory"); err != nil {
				return err
			}
			if b.Kind != journal.KindRestore { // it was promised to these
				return need.Require(ctx, b.driver, nil)
			}
			return b.Env.AwaitRoom(ctx, func() error {
				return need.Require(ctx, b.driver, b.Env.Promised(b.Session.Session, b.Hold))
			})
		})
	})
	go func() { _ = room() }() // during the first fill: NVML takes 10 ms for each GPU of the host
	err = b.parallel(func(t *Target) error {
		if t.lacks == lacksAll {
			if err := b.fill(ctx, t); err != nil {
				return err
			}
			if err := runRestoreThreads(ctx, b.tracer, []*Target{t}); err != nil {
				return err
			}
		}
		if t.lacks == lacksCheck {
			if err := b.fill(ctx, t); err != nil {
				return err
			}
		}
		filled := make(chan error, 1)
		go func() {
			var err error
			if t.lacks == lacksMoved && t.kept == nil {
				err = b.fill(ctx, t)
			}
			filled <- err
		}()
		var err error
		if room() == nil { // else returned once, below
			err = b.restoreDriver(ctx, t)
		}
		return errors.Join(err, <-filled)
	})
	return errors.Join(room(), err)
}

// restoreDriver has the driver restore the state of a process, unless it has.
func (b *wayBack) restoreDriver(ctx context.Context, t *Target) error {
	ctx, cancel := b.Env.Config.Restore.Within(ctx)
	defer cancel()
	state, err := t.CUDA.State(ctx)
	if err != nil || state == cudackpt.StateRunning || state == cudackpt.StateLocked {
		return err
	}
	return b.SpanOf(t.PID, "restore", func() error {
		return stepOut(ctx, b.Session, t, func() error {
			err := t.CUDA.Restore(ctx, cudackpt.RestoreOptions{Pairs: t.pairs})
			return b.unanswered(ctx, t, staysStopped, err)
		})
	})
}
