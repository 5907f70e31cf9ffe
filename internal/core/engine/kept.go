package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"

	"cucriu/cudackpt"
	"cucriu/internal/core/agent"
	"cucriu/internal/core/session"
)

// A dump after which the job goes on has the library leave a copy of the memory that it moves to the host on the
// GPUs. Neither the job nor the driver has anything to do with it meanwhile: the watcher holds it
// ([session.Session.Keep]). The way back copies it on the GPU, at the speed of that, and needs neither the files nor the
// host's copy; these are there for the case that somebody was killed.

func (s *Suspension) canKeep(ctx context.Context, t *Target) bool {
	if !s.Session.Keeps() {
		return false
	}
	err := t.agent.CanKeep(ctx)
	if err != nil {
		s.Log.Debug("the GPUs cannot keep the memory of a process", "pid", t.PID, "reason", err)
	}
	return err == nil
}

// keep gives the watcher what a library has left on the GPUs, if it has.
func (s *Suspension) keep(ctx context.Context, t *Target) error {
	status, err := t.agent.Status()
	if err != nil {
		return err
	}
	if status.Descriptor < 0 {
		s.Log.Debug("the GPUs cannot keep the memory of a process: the driver gives no descriptor, or there are too many", "pid", t.PID)
		return nil
	}
	socket, err := t.ShareSocket(status.Descriptor)
	if err == nil {
		err = s.Session.Keep(t.PID, socket)
		socket.Close()
	}
	if err != nil {
		s.Log.Debug("the GPUs cannot keep the memory of a process", "pid", t.PID, "reason", err)
	}
	if err := s.Session.Failpoint(ctx, string(s.Session.Kind)+".kept"); err != nil {
		return err
	}
	return t.agent.Do(ctx, agent.LetGo)
}

// takeKept takes what the watcher has kept. This program has it until it has been used; whoever tries after us has the files.
func (b *wayBack) takeKept() {
	if err := b.TakeKept(); err != nil {
		b.Env.Log.Debug("what the GPUs have kept cannot be had", "error", err)
	}
	for _, t := range b.all {
		if status, err := t.findAgent(); err == nil && status.State == agent.Emptied {
			t.kept = b.Kept(t.PID)
		} else {
			b.ForgetKept(t.PID)
		}
	}
}

// lackedMemory returns how much GPU memory a process will take that is not there yet.
func (t *Target) lackedMemory() map[cudackpt.UUID]uint64 {
	if t.kept == nil {
		return t.Member.MemoryBytes
	}
	lacked := maps.Clone(t.Member.MemoryBytes)
	kept, err := t.agent.Kept()
	if err != nil {
		return lacked
	}
	for gpu := range lacked {
		lacked[gpu] -= min(lacked[gpu], kept[gpu])
	}
	return lacked
}

// moveIn has the library in a process bring back what it has moved. A fill takes as long as the files take.
func (b *wayBack) moveIn(ctx context.Context, t *Target) error {
	// Somebody who was killed may have told it to. Nothing may be filled in meanwhile.
	err := b.within(ctx, func(ctx context.Context) error { return t.obey(ctx, b.Session, agent.Prepare) })
	if err != nil && !agent.Answered(err) {
		return err
	}
	if status, err := t.agent.Status(); err != nil {
		return err
	} else if status.State != agent.Emptied {
		return b.isBack(t)
	}
	if t.kept != nil {
		err := b.SpanOf(t.PID, "move in", func() error { return b.within(ctx, func(ctx context.Context) error { return b.moveInKept(ctx, t) }) })
		b.ForgetKept(t.PID)
		t.kept = nil
		if err == nil {
			b.nothingIsLacking(t)
			return nil
		}
		if !agent.Answered(err) && !errors.Is(err, errNotGiven) {
			return err
		}
		b.Env.Log.Warn("what the GPUs have kept of a process's memory is not used", "pid", t.PID, "error", err)
	}
	if t.lacks == lacksMoved && t.check != nil {
		err := b.moveInFiles(ctx, t)
		if err == nil {
			err = b.within(ctx, func(ctx context.Context) error { return b.Failpoint(ctx, string(b.Kind)+".back.unchecked") })
		}
		if err == nil {
			return b.isBack(t)
		}
		if damage := t.awaitCheck(); damage != nil || !errors.Is(err, errNotGiven) {
			return cmp.Or(damage, err)
		}
		const slower = "the library in a process does not read the files itself, which takes longer"
		b.Env.Log.Warn(slower, "pid", t.PID, "error", err)
	}
	t.direct = false
	fill := b.fillSame
	if t.lacks == lacksMoved {
		fill = b.fill
	}
	err = fill(ctx, t)
	if err == nil {
		err = t.agent.SetPieces(0) // somebody who was killed may have asked for some
	}
	if err != nil {
		return err
	}
	return b.SpanOf(t.PID, "move in", func() error {
		return b.within(ctx, func(ctx context.Context) error { return t.obey(ctx, b.Session, agent.In) })
	})
}

// isBack notes that a process needs the files no more, if what it has from them was right.
func (b *wayBack) isBack(t *Target) error {
	if err := t.awaitCheck(); err != nil {
		return err
	}
	b.nothingIsLacking(t)
	return nil
}

// within does something within restore.timeout.
func (b *wayBack) within(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := b.Env.Config.Restore.Within(ctx)
	defer cancel()
	return do(ctx)
}

var errNotGiven = errors.New("the library cannot be given it")

func (b *wayBack) moveInKept(ctx context.Context, t *Target) error {
	if err := t.hand(ctx, t.kept); err != nil {
		return err
	}
	if err := b.Failpoint(ctx, string(b.Kind)+".back.kept"); err != nil {
		return err
	}
	return t.obey(ctx, b.Session, agent.InKept)
}

// hand gives the library in a process descriptors.
func (t *Target) hand(ctx context.Context, files ...*os.File) error {
	if err := t.agent.Do(ctx, agent.Connect); err != nil {
		return err
	}
	status, err := t.agent.Status()
	var to *os.File
	if err == nil {
		to, err = t.ShareSocket(status.Descriptor)
	}
	if err == nil {
		err = session.SendFiles(to, []byte{0}, files...)
		to.Close()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNotGiven, err)
	}
	return nil
}
