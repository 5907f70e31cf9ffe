package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/agent"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/fault"
)

// The driver restores no process that has memory of another one. If all processes of a job have the library, that is taken
// down when the memory moves to the host, and the kernel module is asked whether anything is left ([Suspension.Trace]).
// On the way back, when every process has its own memory again, owners give the others descriptors of it.

// takeDownShared takes down what processes have of each other, and refuses what could not be put up again. The
// program's threads are parked, so nothing is added. Only when no process has memory of another one any more, may an owner move its
// own: else the two would go on with memory that is not the same.
func (s *Suspension) takeDownShared(ctx context.Context, guests []*Target) error {
	if len(s.Targets) < 2 {
		return nil
	}
	knowing := slices.DeleteFunc(slices.Clone(guests), func(t *Target) bool { // the others share nothing, or are found below
		return !t.agent.KnowsOwners() || t.agent.CanKeep(ctx) != nil
	})
	knowing, err := s.list(ctx, knowing)
	if err != nil {
		return err
	}
	shared, err := matchLinks(knowing)
	if err != nil || !shared {
		return err
	}
	served := func(p inspect.Process) bool {
		return slices.ContainsFunc(knowing, func(t *Target) bool { return t.PID == p.PID })
	}
	if err := s.requireNoLoss(served); err != nil {
		return err
	}
	if err := s.Session.Failpoint(ctx, string(s.Session.Kind)+".listed"); err != nil {
		return err
	}
	for _, t := range knowing {
		t.Member.Moved = true
	}
	if err := s.Session.Save(); err != nil {
		return err
	}
	if err := Parallel(knowing, func(t *Target) error { return s.tell(ctx, t, agent.Down) }); err != nil {
		return err
	}
	if err := s.Session.Failpoint(ctx, string(s.Session.Kind)+".down"); err != nil {
		return err
	}
	return s.requireNoLoss(nil)
}

// requireNoLoss is [Suspension.lookAgain] where nothing can be forced: two processes would have different memory.
func (s *Suspension) requireNoLoss(served func(inspect.Process) bool) error {
	return lateRefusal(inspect.Losses(s.Driver, journal.ProcessesOf(s.Members), served))
}

// list asks the libraries, and returns the processes of those that answer. The others may share nothing.
func (s *Suspension) list(ctx context.Context, targets []*Target) (listed []*Target, err error) {
	done := make([]bool, len(targets))
	err = ParallelUpTo(len(targets), len(targets), func(i int) error {
		err := s.tell(ctx, targets[i], agent.List)
		if done[i] = err == nil; agent.Answered(err) && !errors.Is(err, agent.ErrGiving) {
			s.Log.Debug("what a process shares is not known", "pid", targets[i].PID, "reason", err)
			return nil
		}
		return err
	})
	for i, t := range targets {
		if done[i] {
			listed = append(listed, t)
		}
	}
	return listed, err
}

// tell has the library in a process do something while the process is unlocked.
func (s *Suspension) tell(ctx context.Context, t *Target, c agent.Command) error {
	var answer error
	err := s.whileUnlocked(ctx, t, func() error {
		answer = t.obey(ctx, s.Session, c)
		if agent.Answered(answer) {
			return nil
		}
		return answer
	})
	if err == nil && answer != nil {
		err = fmt.Errorf("process %d (%s), of what it shares: %w", t.PID, t.Member.Name, answer)
	}
	return err
}

// memoryOf is memory by its owner's name and number for it.
type memoryOf struct {
	owner  agent.Owner
	number uint64
}

// matchLinks finds the owner of everything that was opened, and reports whether anything was given to others at all.
func matchLinks(targets []*Target) (shared bool, err error) {
	type owned struct {
		agent.Link
		by *Target
	}
	given := make(map[memoryOf]owned)
	opened := make(map[*Target][]agent.Link)
	for _, t := range targets {
		links, err := t.agent.Links()
		if err != nil {
			return false, err
		}
		shared = shared || len(links) > 0
		for _, l := range links {
			if l.Opened == 0 {
				given[memoryOf{l.Owner, l.Number}] = owned{l, t}
			} else {
				opened[t] = append(opened[t], l)
			}
		}
	}
	for t, links := range opened {
		for _, l := range links {
			its, has := given[memoryOf{l.Owner, l.Number}]
			switch {
			case !has:
				return shared, fault.New(fmt.Sprintf("process %d (%s) has GPU memory of another process that has given it back, or cannot be asked: nobody could put it up again", t.PID, t.Member.Name),
					"have that process give it back, too (cuIpcCloseMemHandle, or cuMemUnmap and cuMemRelease), before the checkpoint")
			case its.Movable == 0:
				return shared, notMovable(its.by, fmt.Sprintf("which process %d (%s) has opened", t.PID, t.Member.Name))
			case l.Movable == 0:
				return shared, notMovable(t, fmt.Sprintf("which it has opened from process %d (%s)", its.by.PID, its.by.Member.Name))
			}
		}
	}
	return shared, nil
}

// notMovable says of the memory of a process, with its own access to it, that the library can neither copy it nor put it up again.
func notMovable(t *Target, which string) error {
	return fault.New(fmt.Sprintf("process %d (%s) has GPU memory, %s, that its library cannot take down and put up again: "+
		"GPUs may access only a part of it, or it was bound to an array or a multicast object", t.PID, t.Member.Name, which),
		"have that process give all of it the same access, or release its handles, before the checkpoint")
}

// shareAgain puts up what processes have of each other, which all have their own memory again. One whose owner has ended
// meanwhile, with the only copy of it, has no way back, and must not keep the others from theirs.
func (b *wayBack) shareAgain(ctx context.Context) error {
	var ended atomic.Bool
	ended.Store(len(b.all) < len(b.Members))
	var sharers []*Target
	without := make(map[*Target]bool)
	for _, t := range b.cuda {
		status, err := t.findAgent()
		if err != nil && b.hasEnded(t) {
			ended.Store(true)
			continue
		}
		if err != nil {
			return err
		}
		without[t] = status.Down
		// Who was not gated has neither given nor opened anything, and may have no memory to prepare.
		if t.agent != nil && t.Member.Gated && t.agent.KnowsOwners() {
			sharers = append(sharers, t)
		}
	}
	takers := slices.DeleteFunc(slices.Clone(sharers), func(t *Target) bool { return !without[t] })
	if len(takers) > 0 {
		if err := b.shareAmong(ctx, sharers, takers, &ended); err != nil {
			return err
		}
	}
	for _, t := range b.cuda {
		if !without[t] {
			continue
		}
		if err := b.requireShared(t, ended.Load()); err != nil && b.hasEnded(t) {
			ended.Store(true)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// shareAmong has owners give the others what these have of their memory, and notes whether one of them has ended.
func (b *wayBack) shareAmong(ctx context.Context, owners, takers []*Target, ended *atomic.Bool) error {
	failed := func(t *Target, err error) error {
		if err != nil && b.hasEnded(t) { // others may have its memory
			ended.Store(true)
			return nil
		}
		if err != nil {
			err = fmt.Errorf("process %d (%s), of what it shares: %w", t.PID, t.Member.Name, err)
		}
		return err
	}
	return b.withLibraries(ctx, owners, func(running []*Target) error {
		if len(running) < len(owners) {
			ended.Store(true)
		}
		takers := slices.DeleteFunc(slices.Clone(takers), func(t *Target) bool { return !slices.Contains(running, t) })
		give := func(owner *Target, from uint64) (g gift, err error) {
			err = b.within(ctx, func(ctx context.Context) (err error) {
				g, err = b.give(ctx, owner, from)
				return err
			})
			return g, failed(owner, err)
		}
		// The descriptors of an owner that has ended are as good as ever: its end explains no failure of this one.
		take := func(to *Target, gifts []gift) error { return failed(to, b.take(ctx, to, gifts)) }
		return exchange(running, takers, give, take)
	})
}

// requireShared fails for a process that still lacks memory of another one. If its owner has ended, nobody can give it: then that process
// is ended, so that the others can go on.
func (b *wayBack) requireShared(t *Target, ended bool) error {
	status, err := t.agent.Status()
	switch {
	case err != nil || !status.Down:
		return err
	case b.Kind == journal.KindRestore || !ended:
		return fmt.Errorf("process %d (%s) lacks memory of another one, which does not give it", t.PID, t.Member.Name)
	}
	b.Env.Log.Error("a process is ended: it lacks memory of another one, which has ended", "pid", t.PID, "name", t.Member.Name)
	return t.Signal(unix.SIGKILL)
}

// hasEnded reports whether a process has ended that need not be there any more.
func (b *wayBack) hasEnded(t *Target) bool { return b.Kind != journal.KindRestore && t.Exiting() }
