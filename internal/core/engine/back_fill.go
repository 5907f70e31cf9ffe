package engine

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/agent"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/proc"
)

// lack is what of a process's memory is in files only.
type lack int

const (
	lacksNothing lack = iota
	lacksMoved        // what the library in it has moved to the host
	lacksAll          // that, and the state of the driver
	lacksCheck        // nothing, but nobody has found out whether what a library has read from them is right
)

// findLack finds out what a process lacks that does, by the journal. If the driver has restored its state, what was
// there is the job's own by now. So is the memory of a library, once it has brought it back.
func (b *wayBack) findLack(ctx context.Context, t *Target) error {
	t.lacks, t.direct = lacksNothing, false
	if t.Member.Pages == nil {
		return nil
	}
	if !t.Member.Pages.Dropped {
		if again, err := b.isTakenAway(ctx, t); err != nil || !again {
			return err
		}
		b.Update(func() { t.Member.Pages.Dropped = true })
	}
	t.lacks = lacksAll // also if it ends while it is asked
	checkpointed, err := b.isCheckpointed(ctx, t)
	if err == nil {
		err = t.findMoved()
	}
	if err == nil && b.Kind == journal.KindRestore && t.moved.Size() > 0 {
		err = b.findDirect(ctx, t)
	}
	switch {
	case err != nil || checkpointed:
		return err
	case t.moved.Size() > 0:
		t.lacks = lacksMoved
	case b.Kind == journal.KindRestore: // and somebody was killed before he had noted it
		t.lacks = lacksCheck
	default:
		t.lacks, t.Member.Pages.Dropped = lacksNothing, false
	}
	return nil
}

// isTakenAway reports whether memory that was filled in is inaccessible once more, and the driver needs it. criu has
// memory made readable for its copy, and inaccessible again; if it is killed in between, its code in the process may
// still do the second when somebody continues the process.
func (b *wayBack) isTakenAway(ctx context.Context, t *Target) (bool, error) {
	input, err := session.OpenPages(&b.Record, t.Member)
	if err != nil {
		return false, nil // it cannot be filled in again, either
	}
	defer input.Close()
	space, err := proc.ReadAddressSpace(t.PID)
	if err != nil || len(proc.Subtract(input.Ranges(), space.Private)) == 0 {
		return false, err
	}
	return b.isCheckpointed(ctx, t) // else the driver has unmapped it
}

// findMoved finds out where a library keeps what it has moved to the host.
func (t *Target) findMoved() error {
	status, err := t.findAgent()
	if t.moved = (proc.Range{}); status.State == agent.Emptied && status.Staging.Start < status.Staging.End {
		t.moved = status.Staging
	}
	return err
}

// isCheckpointed asks the driver about a stopped process. Only its restore thread runs meanwhile, which
// does not look at the memory until it is told to restore; or it was, and answers when it is through.
func (b *wayBack) isCheckpointed(ctx context.Context, t *Target) (bool, error) {
	tracer := inject.NewTracer()
	var state cudackpt.State
	err := runRestoreThreads(ctx, tracer, []*Target{t})
	if err == nil {
		err = stepOut(ctx, b.Session, t, func() (err error) {
			state, err = t.CUDA.State(ctx)
			return err
		})
	}
	err = errors.Join(err, ReleaseThreads(context.WithoutCancel(ctx), tracer, []*Target{t}))
	return state == cudackpt.StateCheckpointed, err
}

// fill brings back memory that was dropped in a process, while none of its threads but the restore thread run: what
// the driver needs, and at the next call what the library has moved, which is filled in while the driver restores. If
// the library is to read that from the files ([wayBack.moveInFiles]), a check of it begins. It may be cut off and begun
// again: until the driver has restored, all of it; then what was moved, until the library has brought that back. Once
// nothing is lacking, the journal says so.
func (b *wayBack) fill(ctx context.Context, t *Target) error {
	if err := b.fillIn(ctx, t); err != nil {
		return err
	}
	b.noteResident()
	if t.lacks == lacksAll && t.moved.Size() > 0 {
		t.lacks = lacksMoved
		return nil
	}
	if t.check != nil {
		return nil
	}
	b.nothingIsLacking(t)
	return b.Failpoint(ctx, string(b.Kind)+".back.filled")
}

// noteResident notes what is filled in as memory that is taken.
func (b *wayBack) noteResident() {
	var hasMore bool
	if b.Update(func() { hasMore = session.NoteResident(&b.Record) }); hasMore {
		b.Note()
	}
}

// nothingIsLacking notes that a process needs the files no more.
func (b *wayBack) nothingIsLacking(t *Target) {
	if t.lacks != lacksNothing {
		t.lacks, t.filled = lacksNothing, true
		b.Update(func() { t.Member.Pages.Dropped = false })
		b.Note()
	}
}

// fillIn fills in what a process lacks. If the library is to read that from the files, it begins to check it.
func (b *wayBack) fillIn(ctx context.Context, t *Target) error {
	b.atOnce <- struct{}{}
	free := func() { <-b.atOnce }
	if err := ctx.Err(); err != nil {
		free()
		return err
	}
	input, err := session.OpenPages(&b.Record, t.Member)
	if err != nil {
		free()
		return b.ofState(t, err)
	}
	do := func() error {
		defer free()
		defer input.Close()
		return b.ofState(t, b.fillFrom(ctx, t, input))
	}
	if t.lacks != lacksMoved || !t.direct || !readable(input, t.moved) {
		return do()
	}
	t.check = make(chan error, 1)
	check := t.check
	go func() { check <- do() }()
	return nil
}

// ofState says whose GPU state it is that an error is about.
func (b *wayBack) ofState(t *Target, err error) error {
	if err == nil {
		return nil
	}
	if b.Kind == journal.KindRestore && errors.Is(err, pages.ErrDamaged) {
		err = fmt.Errorf("%w: %s", err, preflight.RemedyOf(preflight.FindingImage))
	}
	return fmt.Errorf("the GPU state of process %d (%s): %w", t.PID, t.Member.Name, err)
}

func (b *wayBack) fillFrom(ctx context.Context, t *Target, input *pages.Reader) error {
	fill := func(ctx context.Context, from pages.Source) error {
		return pages.Fill(ctx, from, t.Process, coresFor(1))
	}
	check := func(ctx context.Context, from pages.Source) error { return pages.Check(ctx, from, coresFor(1)) }
	moved, others := input.Split(t.moved)
	source, name, doing, bring := moved, "fill moved", "filling-moved", fill
	switch {
	case t.lacks == lacksAll:
		source, name, doing = others, "fill", "filling"
		makeAccessible := func() error { return b.makeAccessible(ctx, t, input.Ranges()) }
		if err := b.SpanOf(t.PID, "make accessible", makeAccessible); err != nil {
			return err
		}
	case t.lacks == lacksCheck:
		source, name, doing, bring = others, "check", "checking", check // nothing is moved any more
	case t.check != nil:
		name, doing, bring = "check moved", "checking-moved", check
	}
	ctx, stall := NewStall(ctx, b.Env.Config.Restore.Timeout)
	defer stall.End(context.Canceled)
	stall.Begin()
	return b.SpanOf(t.PID, name, func() error {
		done := make(chan error, 1)
		go func() {
			done <- bring(ctx, watchedSource{source, Progress{ctx, b.Session, stall, doing}})
		}()
		if b.Kind != journal.KindRestore {
			return <-done // nothing else may be tried: a read that hangs may yet end
		}
		select {
		case err := <-done:
			return err
		case <-ctx.Done(): // the caller ends the process; the image is whole
			return context.Cause(ctx)
		}
	})
}

type watchedSource struct {
	pages.Source
	Progress
}

func (s watchedSource) Get(i int, buffer []byte) (pages.Chunk, error) {
	if err := s.Chunk(); err != nil {
		return pages.Chunk{}, err
	}
	return s.Source.Get(i, buffer)
}

// makeAccessible makes dropped memory accessible again, in huge pages where the kernel has them: both
// the copying and the driver are quicker with them.
func (b *wayBack) makeAccessible(ctx context.Context, t *Target, ranges []proc.Range) (err error) {
	ctx, cancel := b.Env.Config.Restore.Within(ctx)
	defer cancel()
	if err := b.Failpoint(ctx, string(b.Kind)+".back.fill"); err != nil {
		return err
	}
	lent, err := Borrow(ctx, b.Session, t, 1, 0, b.BorrowedFile(t.PID))
	if diskFull(err) {
		lent, err = Borrow(ctx, b.Session, t, 1, 0, "")
	}
	if err != nil {
		return err
	}
	defer func() {
		// Return it past the deadline, too: otherwise the next try could not have the thread.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ReleaseTimeout)
		defer cancel()
		err = errors.Join(err, lent.Return(ctx))
	}()
	if err := lent.Mprotect(ctx, ranges, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return err
	}
	if err := b.Failpoint(ctx, string(b.Kind)+".back.accessible"); err != nil {
		return err
	}
	if err := ignoreEINVAL(lent.Madvise(ctx, ranges, unix.MADV_HUGEPAGE)); err != nil {
		return err
	}
	space, err := proc.ReadAddressSpace(t.PID)
	if err != nil {
		return err
	}
	if missing := proc.Subtract(ranges, space.Private); len(missing) > 0 {
		return fmt.Errorf("the process lacks %d bytes of memory for it, at %#x", proc.Total(missing), missing[0].Start)
	}
	return nil
}

// ignoreEINVAL ignores EINVAL from advice about huge pages: a kernel without transparent huge pages
// does not know it.
func ignoreEINVAL(err error) error {
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// diskFull reports whether an error is that the run directory takes nothing more, which must not keep a job from coming back.
func diskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS)
}
