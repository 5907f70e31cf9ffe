package hooks

import (
	"context"
	"fmt"
	"slices"

	"cucriu/criuutil/inject"
	"cucriu/hooks/preflight"
)

// lock keeps the GPU idle: no new work is taken, what runs has ended. All
// processes or none, because one that is locked keeps the others' collectives
// from ending. See [locking] for the order.
//
// Locking takes more of a process than its restore thread (the driver waits for
// ever for one of its other threads, whatever the timeout), so those that were
// stopped before we came run under trace for the moment that it takes.
func (d *dump) lock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.patience())
	defer cancel()
	d.tracer = inject.NewTracer()
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

// measure notes how much memory each process holds on each GPU, which is what
// its restore will take. While it is locked it cannot allocate more, so what could
// not be restored is looked for once more.
func (d *dump) measure(ctx context.Context) error {
	processes := make([]preflight.Process, len(d.targets))
	for i, t := range d.targets {
		processes[i] = t.member.Process
	}
	listed, err := preflight.Measure(ctx, d.driver, processes)
	if err != nil {
		return err
	}
	for i, t := range d.targets {
		t.member.MemoryBytes = processes[i].MemoryBytes
	}
	if d.session == nil {
		return nil // locked alone, it comes back
	}
	peers, err := preflight.Peers(d.driver, processes, listed, true)
	if err != nil {
		return err
	}
	if errs := peers.Force(slices.Concat(d.Force, d.Config.Force)).Of(preflight.SeverityError); len(errs) > 0 {
		return fmt.Errorf("it has come since the inspection: %s", errs[0])
	}
	return nil
}
