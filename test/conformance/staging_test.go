package conformance

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
)

// stagesAtOnce checkpoints a target and reports how the driver maps the memory for it. The
// mapping is made without being populated, and the process's other threads make it ready.
// The content must be right all the same.
func stagesAtOnce(b *bench) (string, error) {
	pid, err := b.main()
	if err != nil {
		return "", err
	}
	if err := b.stop(); err != nil {
		return "", err
	}
	before, err := proc.ReadAddressSpace(pid)
	if err != nil {
		return "", err
	}
	tid, err := b.restoreThread()
	if err != nil {
		return "", err
	}
	var populated []proc.Range
	var readyErr error
	b.tracer = inject.NewTracer()
	err = b.tracer.RunPopulating(tid, 1<<20, func(r proc.Range) bool {
		populated = append(populated, r)
		readyErr = errors.Join(readyErr, makeReady(pid, tid, r))
		return true
	})
	if err := errors.Join(err, b.must(checkpoint, pid), b.release(), readyErr); err != nil {
		return "", err
	}
	after, err := proc.ReadAddressSpace(pid)
	if err != nil {
		return "", err
	}
	held := uint64(b.stagingMiB) << 20
	if len(populated) == 1 && populated[0].Size() >= held && len(proc.Subtract(populated, after.NewSince(before))) == 0 {
		return "one mapping for all, populated by the kernel at once", b.resume()
	}
	return fmt.Sprintf("populated %v of %v that are new, for %d bytes of device memory", populated, after.NewSince(before), held), nil
}

// makeReady lets all threads of the process but one populate memory of it.
func makeReady(pid, but int, r proc.Range) error {
	tids, err := proc.Threads(pid)
	if err != nil {
		return err
	}
	ctx, cancel := within(time.Minute)
	defer cancel()
	lent, err := inject.Borrow(ctx, pid, slices.DeleteFunc(tids, func(tid int) bool { return tid == but }), "")
	if err != nil {
		return err
	}
	return errors.Join(lent.Madvise(ctx, []proc.Range{r}, unix.MADV_POPULATE_WRITE), lent.Return(ctx))
}
