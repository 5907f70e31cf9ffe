package hooks

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/criuutil/pages"
)

// lacksMemory reports whether memory of the process is in files only.
func (t *target) lacksMemory() bool { return t.member.Pages != nil && t.member.Pages.Dropped }

// fill brings back the memory of a process that was dropped, while nothing of it
// runs: its restore thread is let run only with all of it there.
//
// It may be cut off and begun again. Once it is through, the journal says so:
// the driver may free the memory from then on.
func (b *bringUp) fill(ctx context.Context, t *target) error {
	b.filling.Lock()
	defer b.filling.Unlock()
	if err := failpoint(ctx, b.Session, string(b.Kind)+".back.fill"); err != nil {
		return err
	}
	if err := b.span(t.PID, "fill", func() error { return b.fillOne(ctx, t) }); err != nil {
		return fmt.Errorf("the GPU state of process %d (%s): %w", t.PID, t.member.Name, err)
	}
	t.member.Pages.Dropped = false
	b.hook.note(b.Session)
	return nil
}

func (b *bringUp) fillOne(ctx context.Context, t *target) error {
	reader, err := b.openPages(t.member)
	if err != nil {
		return err
	}
	defer reader.Close()
	ranges := reader.Ranges()
	if err := b.makeAccessible(ctx, t, ranges); err != nil {
		return err
	}
	space, err := criuutil.ReadAddressSpace(t.PID)
	if err != nil {
		return err
	}
	if missing := criuutil.Subtract(ranges, space.Private); len(missing) > 0 {
		return fmt.Errorf("the process lacks %d bytes of memory for it, at %#x", criuutil.Total(missing), missing[0].Start)
	}
	return pages.Fill(ctx, failingSource{reader, ctx, b.Session}, t.Process, coresFor(1))
}

// makeAccessible makes dropped memory accessible again, in huge pages where the
// kernel has them: both the copying and the driver are quicker with them.
func (b *bringUp) makeAccessible(ctx context.Context, t *target, ranges []criuutil.Range) (err error) {
	lent, err := b.borrow(ctx, t, 1, 0, b.borrowedFile(t.PID))
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS) {
		// A full disk must not keep a job from coming back.
		lent, err = b.borrow(ctx, t, 1, 0, "")
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lent.Return(ctx)) }()
	if err := lent.Mprotect(ctx, ranges, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return err
	}
	return ignoreEINVAL(lent.Madvise(ctx, ranges, unix.MADV_HUGEPAGE))
}

// ignoreEINVAL: a kernel without transparent huge pages does not know them.
func ignoreEINVAL(err error) error {
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// failingSource lets the tests fail in the middle of a fill.
type failingSource struct {
	*pages.Reader
	ctx     context.Context
	session *Session
}

func (s failingSource) Get(i int, buffer []byte) (pages.Chunk, error) {
	if err := failpoint(s.ctx, s.session, string(s.session.Kind)+".filling"); err != nil {
		return pages.Chunk{}, err
	}
	return s.Reader.Get(i, buffer)
}
