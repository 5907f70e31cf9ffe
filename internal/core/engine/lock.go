package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/units"
)

// Lock keeps the GPUs idle. It locks all processes or none, because one that is locked keeps the
// others' collectives from ending: see [locking]. The driver waits without end for a thread that does
// not run, so the processes that were stopped before we came run under trace for that moment.
func (s *Suspension) Lock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.PatienceForAll())
	defer cancel()
	s.tracer = inject.NewTracer()
	for _, t := range stoppedBefore(s.Targets) {
		if err := runAllThreads(s.tracer, t); err != nil {
			return err
		}
	}
	if s.Session != nil { // else an operator locks, which goes no further
		if err := s.prepareAgents(ctx); err != nil {
			return err
		}
	}
	s.insist = s.insistUntil(ctx)
	if err := s.lockUntilCallsEnd(ctx); err != nil {
		return err
	}
	if err := s.measure(ctx); err != nil {
		return err
	}
	return ReleaseThreads(ctx, s.tracer, stoppedBefore(s.Targets))
}

// lockUntilCallsEnd locks all processes, and lets calls end that their libraries' gates did not hold.
func (s *Suspension) lockUntilCallsEnd(ctx context.Context) error {
	for {
		if err := s.lockAll(ctx); err != nil {
			return err
		}
		if ended, err := s.letCallsEnd(ctx); ended || err != nil {
			return err
		}
	}
}

// measure notes how much memory each process holds on each GPU, because its restore will take as much.
// A locked process cannot allocate more.
func (s *Suspension) measure(ctx context.Context) error {
	if len(s.Targets) == 0 { // a migration holds trees without CUDA, too, and then there is no driver
		return nil
	}
	processes := journal.ProcessesOf(s.Members)
	if err := inspect.Measure(ctx, s.Driver, processes); err != nil {
		return err
	}
	for i, p := range processes {
		s.Listed = s.Listed || len(p.Listed) > 0
		s.Members[i].MemoryBytes, s.Members[i].Listed = p.MemoryBytes, p.Listed
	}
	return nil
}

// lookAgain looks once more for what could not be restored, while nothing of the job runs.
func (s *Suspension) lookAgain() error {
	if len(s.Targets) == 0 {
		return nil
	}
	findings, err := inspect.Losses(s.Driver, journal.ProcessesOf(s.Members), nil)
	return lateRefusal(findings.Force(slices.Concat(s.Force, s.Config.Force)), err)
}

// lateRefusal is the error for what was found after the inspection.
func lateRefusal(findings preflight.Findings, err error) error {
	if err != nil {
		return err
	}
	if errs := findings.Of(preflight.SeverityError); len(errs) > 0 {
		return fmt.Errorf("found after the inspection: %s", errs[0])
	}
	return nil
}

// StatesOf asks for the state of every process. Only a process that runs can answer. If it was stopped
// before we came, its restore thread runs for as long as the answer takes.
func StatesOf(ctx context.Context, targets []*Target, tell func(*Target, cudackpt.State) error) error {
	stopped := stoppedBefore(targets)
	tracer := inject.NewTracer()
	if err := runRestoreThreads(ctx, tracer, stopped); err != nil {
		return errors.Join(err, ReleaseThreads(ctx, tracer, nil))
	}
	err := Parallel(targets, func(t *Target) error {
		state, err := t.CUDA.State(ctx)
		if err != nil {
			return err
		}
		return tell(t, state)
	})
	return errors.Join(session.GivenUp(ctx, err), ReleaseThreads(ctx, tracer, stopped))
}

func WantRunning(t *Target, state cudackpt.State) error {
	return inspect.StateFindings(&t.Member.Process, state).Err()
}

func stoppedBefore(targets []*Target) []*Target {
	return slices.DeleteFunc(slices.Clone(targets), func(t *Target) bool { return !t.Member.Stopped })
}

// UnlockAll unlocks what is locked, by this program or not. It brings the processes up as a session
// that has got no further than its locks.
func (s *Suspension) UnlockAll(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if s.tracer != nil {
		if err := s.tracer.Release(ctx); err != nil {
			return err
		}
	}
	return BringBack(ctx, s.Driver, s.TakeOn(&journal.Session{Record: journal.Record{Kind: journal.KindSuspend, Step: journal.StepLock, Members: s.Members}}, session.ByCommand), s.Targets)
}

// locking locks processes that may wait for each other. A lock holds back new work at once, and ends
// when the work in flight has ended. Among ranks that all-reduce, one that never synchronizes runs
// ahead: its collectives end only when the others have launched theirs. So the first rank that is
// locked stands in the way of those that are further on.
//
// Therefore a process whose lock does not end stays held, and those that are locked are let run until
// it does, and are locked again at once. If some were too quick for that, they are held next. A held
// process does not move, so they come closer with every round, until all are level.
//
// One that was far ahead would be so again after a millisecond, with hundreds of steps in its queue. So from the time that its
// queue is empty, the library in it lets single calls through, and the next ones when the GPU has done with these.
type locking struct {
	*Suspension
	since      time.Time
	pending    map[*Target]bool      // whose lock call is under way
	held       map[*Target]time.Time // since when, those that the others catch up with
	ahead      map[*Target]bool      // those that were far ahead
	lastCaught time.Time             // when one that was held was locked, or the others were let run
	answers    chan lockAnswer
	over       bool // no more calls
}

type lockAnswer struct {
	*Target
	gotIt bool
	err   error
}

const (
	// lockGrace is how much longer a call may take than it was told, past the deadline too. A call that
	// takes longer waits for a thread that does not run.
	lockGrace = 3 * time.Second
	// leastTry is the least time from one call to the next. It keeps us from asking a driver that
	// refuses at once without end.
	leastTry = 10 * time.Millisecond
	// farAhead is how long others take to catch up with one that is far ahead of them.
	farAhead = 500 * time.Millisecond
	// stepTime is how long the program has to make the calls that are let through.
	stepTime = 2 * time.Millisecond
)

func (s *Suspension) newLocking() *locking {
	return &locking{
		Suspension: s, since: time.Now(),
		pending: make(map[*Target]bool), held: make(map[*Target]time.Time), ahead: make(map[*Target]bool),
		answers: make(chan lockAnswer, len(s.Targets)),
	}
}

// lockAll locks all processes within ctx. After an error the caller must unlock those that are locked.
func (s *Suspension) lockAll(ctx context.Context) error {
	return s.newLocking().run(ctx)
}

func (l *locking) run(ctx context.Context) error {
	err := l.level(ctx)
	l.over = true
	for len(l.pending) > 0 { // after an error: no call may lock a process later
		err = errors.Join(err, l.takeAnswer(ctx, <-l.answers))
	}
	return err
}

func (l *locking) level(ctx context.Context) error {
	window := l.Config.Lock.Try // for those that are let run to catch up
	for round := 1; ; round++ {
		for _, t := range l.unlocked() {
			if !l.pending[t] {
				l.ask(ctx, t, 0)
			}
		}
		if err := l.awaitLocks(ctx); err != nil || len(l.unlocked()) == 0 {
			return err
		}
		held := l.unlocked()
		l.Log.Debug("GPU work of some is still in flight: they are held, and the others run until they are locked", "round", round, "held", PidsOf(held))
		stepping, err := l.letRun(ctx, held)
		if err != nil {
			return err
		}
		caughtUp, err := l.catchUp(ctx, held, window)
		if err == nil && caughtUp {
			err = failpoint.Hit(ctx, "caught-up", 0)
		}
		if err != nil {
			return err
		}
		switch {
		case !caughtUp:
			window = min(2*window, max(l.Config.Lock.Try, time.Since(l.since)/2))
		case !stepping:
			window = max(window/2, time.Millisecond) // but they are not level: take shorter steps
		}
	}
}

// ask begins the lock of a process, after some calls if that is not 0. It tells the driver to take no longer than lock.try:
// if we are killed, the driver soon gives up by itself.
func (l *locking) ask(ctx context.Context, t *Target, calls uint32) {
	try := l.Config.Lock.Try
	patience := try + lockGrace
	if deadline, ok := ctx.Deadline(); ok {
		left := max(time.Until(deadline), time.Millisecond)
		try, patience = min(try, left), left+lockGrace
	}
	l.pending[t] = true
	l.lockCalls++
	go func() {
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		soonest := time.After(min(leastTry, try))
		answer := lockAnswer{Target: t}
		lock := func() (err error) {
			answer.gotIt, err = l.tryLock(call, t, try)
			return err
		}
		if calls == 0 {
			answer.err = l.Session.SpanOf(t.PID, "lock", lock)
		} else if answer.err = t.letThrough(call, calls); answer.err == nil {
			time.Sleep(stepTime)
			answer.err = lock()
		}
		if !answer.gotIt && answer.err == nil {
			<-soonest
		}
		l.answers <- answer
	}()
}

// takeAnswer takes an answer, and asks again if the work has not ended.
func (l *locking) takeAnswer(ctx context.Context, a lockAnswer) error {
	delete(l.pending, a.Target)
	if a.gotIt {
		a.locked, a.everLocked = true, true
		since, wasHeld := l.held[a.Target]
		l.ahead[a.Target] = l.ahead[a.Target] || wasHeld && time.Since(since) > farAhead
		delete(l.held, a.Target)
	}
	if !a.gotIt && a.err == nil && !l.over && ctx.Err() == nil {
		l.ask(ctx, a.Target, 0)
	}
	return a.err
}

// awaitLocks waits until all are locked, or until those that are not have had their time since the last
// one was locked: processes that are level are locked at about the same moment. That time grows,
// because the last work of some may take longer.
func (l *locking) awaitLocks(ctx context.Context) error {
	var followed <-chan time.Time // never, while nobody is locked
	giveTime := func() { followed = time.After(min(20*time.Millisecond+time.Since(l.since)/8, l.Config.Lock.Try)) }
	if len(l.unlocked()) < len(l.Targets) {
		giveTime()
	}
	for len(l.unlocked()) > 0 {
		select {
		case a := <-l.answers:
			if err := l.takeAnswer(ctx, a); err != nil {
				return err
			}
			if a.gotIt {
				giveTime()
			}
		case <-followed:
			return nil
		case <-ctx.Done():
			return l.timeoutError(ctx)
		}
	}
	return nil
}

// letRun lets those run that are not held, so that they catch up with the others. It reports whether of some of them only single
// calls are let through.
func (l *locking) letRun(ctx context.Context, held []*Target) (stepping bool, err error) {
	l.lastCaught = time.Now()
	for _, t := range held {
		if l.held[t].IsZero() {
			l.held[t] = l.lastCaught
		}
	}
	var free []*Target
	for _, t := range l.Targets {
		switch {
		case !t.locked:
		case l.isStepping(t):
			stepping = true
			l.step(ctx, t)
		default:
			free = append(free, t)
		}
	}
	return stepping, Parallel(free, func(t *Target) error {
		return t.unlock(context.WithoutCancel(ctx)) // past the deadline too
	})
}

// isStepping reports whether only single calls of a process are let through.
func (l *locking) isStepping(t *Target) bool { return l.ahead[t] && t.agent != nil }

// step lets the next calls of a process that is locked through, and locks it again.
func (l *locking) step(ctx context.Context, t *Target) {
	t.locked = false
	l.ask(ctx, t, l.singleCalls())
}

// singleCalls is how many calls are let through at a time: one, and four times as many with every second in which nobody has caught up.
func (l *locking) singleCalls() uint32 {
	const most = 8
	return 1 << (2 * min(time.Since(l.lastCaught)/time.Second, most))
}

// catchUp lets the processes that are not held run until one that is held is locked, or until the
// window is over. If that one was far ahead, it goes on by single calls until the others that are held are locked, too.
func (l *locking) catchUp(ctx context.Context, held []*Target, window time.Duration) (bool, error) {
	over := time.After(window)
	for {
		select {
		case a := <-l.answers:
			if err := l.takeAnswer(ctx, a); err != nil {
				return false, err
			}
			if !a.gotIt {
				continue
			}
			if i := slices.Index(held, a.Target); i >= 0 {
				held = slices.Delete(held, i, i+1)
				l.lastCaught = time.Now()
			}
			if len(held) == 0 || !l.isStepping(a.Target) {
				return true, nil
			}
			l.step(ctx, a.Target)
		case <-over:
			return false, nil
		case <-ctx.Done():
			return false, l.timeoutError(ctx)
		}
	}
}

func (l *locking) unlocked() []*Target {
	return slices.DeleteFunc(slices.Clone(l.Targets), func(t *Target) bool { return t.locked })
}

// timeoutError says which processes kept running: those that were never locked, in this round or an earlier one,
// whichever others were let run. One of them whose work does not end keeps those that are further on than it from being locked, too, and
// nobody sees which one it is. If there are none, timeoutError says that the processes never came level.
func (l *locking) timeoutError(ctx context.Context) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	within := fmt.Sprintf("within lock.timeout (%v, %s)", l.Config.Lock.Timeout, units.Count(l.lockCalls, "call"))
	never := slices.DeleteFunc(slices.Clone(l.Targets), func(t *Target) bool { return t.everLocked })
	if len(never) > 0 {
		waiting := ""
		if len(never) > 1 {
			waiting = " (one of them may keep the others waiting)"
		}
		return fmt.Errorf("GPU work of %s did not end %s%s: raise lock.timeout, or dump between long kernels", named(never), within, waiting)
	}
	return fmt.Errorf("%s could not all be locked at once %s: each was locked for a while, and last the GPU work of %s did not end, probably because they wait for each other: "+
		"raise lock.timeout, or dump where all of them synchronize", named(l.Targets), within, named(l.unlocked()))
}

func named(targets []*Target) string {
	members := make([]journal.Member, len(targets))
	for i, t := range targets {
		members[i] = *t.Member
	}
	return session.NamedMembers(members)
}
