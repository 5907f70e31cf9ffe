package hooks

import (
	"context"
	"fmt"
	"slices"
	"time"

	"cucriu/criuutil"
	"cucriu/cudackpt"
)

// lock keeps the GPU idle: no new work is taken, what runs has ended. All
// processes at once, because ranks that wait for each other in a collective
// can only be locked together; and all or none, because one that is locked
// keeps the others' collectives from ending.
//
// Locking takes more of a process than its restore thread (the driver waits for
// ever for one of its other threads, whatever the timeout), so those that were
// stopped before we came run under trace for the moment that it takes.
func (d *dump) lock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.Config.Lock.Timeout)
	defer cancel()
	d.tracer = criuutil.NewTracer()
	for _, t := range stoppedBefore(d.targets) {
		if err := runAllThreads(d.tracer, t); err != nil {
			return err
		}
	}
	if err := d.lockAll(ctx); err != nil {
		return err
	}
	if err := d.measure(ctx); err != nil {
		return err
	}
	return releaseThreads(ctx, d.tracer, stoppedBefore(d.targets))
}

// lockGrace is how much longer than it was told a try may take: past that the
// driver waits for a thread that does not run.
const lockGrace = 3 * time.Second

func (d *dump) lockAll(ctx context.Context) error {
	for tries := 1; ; tries++ {
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.Config.Lock.Try+lockGrace)
		err := parallel(d.targets, func(t *target) error {
			return d.session.span(t.PID, "lock", func() (err error) {
				t.locked, err = t.cuda.TryLock(try, d.Config.Lock.Try)
				return err
			})
		})
		cancel()
		if err != nil {
			return err
		}
		busy := slices.DeleteFunc(slices.Clone(d.targets), func(t *target) bool { return t.locked })
		if len(busy) == 0 {
			return nil
		}
		d.Log.Info("GPU work still in flight, unlocking all and trying again", "try", tries, "busy", pidsOf(busy))
		err = parallel(d.targets, func(t *target) error {
			if !t.locked {
				return nil
			}
			return t.cuda.Unlock(context.WithoutCancel(ctx)) // past the deadline too
		})
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("GPU work of processes %v did not end within lock.timeout (%v, %d tries): raise lock.timeout, or dump between two long kernels", pidsOf(busy), d.Config.Lock.Timeout, tries)
		case <-time.After(50 * time.Millisecond): // lets the ranks reach their collective
		}
	}
}

// measure notes how much memory each process holds on each GPU, which is what
// its restore will take. While it is locked it cannot allocate more, so what could
// not be restored is looked for once more.
func (d *dump) measure(ctx context.Context) error {
	listed := make([]map[cudackpt.UUID]uint64, len(d.targets))
	for i, t := range d.targets {
		var err error
		if listed[i], err = memoryHeld(ctx, d.driver, t.member); err != nil {
			return fmt.Errorf("process %d (%s): %w", t.PID, t.member.Name, err)
		}
		t.member.MemoryBytes = knownMemory(listed[i])
	}
	if d.session == nil {
		return nil // locked alone, it comes back
	}
	members := make([]Member, len(d.targets))
	for i, t := range d.targets {
		members[i] = *t.member
	}
	peers, err := peersOf(members, listed)
	if err != nil {
		return err
	}
	if errs := peers.Force(slices.Concat(d.Force, d.Config.Force)).Of(SeverityError); len(errs) > 0 {
		return fmt.Errorf("it has come since the inspection: %s", errs[0])
	}
	return nil
}
