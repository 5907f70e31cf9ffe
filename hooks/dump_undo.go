package hooks

import (
	"context"
	"errors"
	"fmt"

	"cucriu/hooks/journal"
)

// undo brings the processes back to where they were before the dump. What it
// cannot do now the watcher goes on trying once criu has gone.
func (d *dump) undo() (fate, error) {
	ctx := context.Background()
	if err := d.releaseTracers(ctx); err != nil {
		return fate{}, err
	}
	if d.session == nil {
		return fate{}, d.refreeze(ctx)
	}
	message := "the " + string(d.session.Kind) + " was refused, nothing was touched; "
	if len(d.thawed) > 0 {
		message = "the " + string(d.session.Kind) + " was refused, the tree was thawed for a moment; "
	}
	if d.session.Step != "" { // else the watcher did not start
		if err := d.bringUp(ctx, d.driver, d.session, d.targets); err != nil {
			return fate{}, fmt.Errorf("the job is not back yet, the watcher goes on trying (cucriu status shows it): %w", err)
		}
		message = "the " + string(d.session.Kind) + " failed at step " + string(d.session.Step) + "; "
	} else if err := d.refreeze(ctx); err != nil { // while the journal knows of it
		return fate{}, err
	}
	// By the directory's own name: criu's descriptor of it may have ended with criu.
	if err := d.session.removePages(); err != nil {
		d.Log.Warn("files of the fast lane are left in the image directory", "error", err)
	}
	f, err := d.session.closeAlive(journal.OutcomeRunning, message, "runs on")
	if err != nil {
		return f, err
	}
	return f, d.refreeze(ctx)
}

// releaseTracers puts every thread back into the group-stop that was let run or
// borrowed.
func (d *dump) releaseTracers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	var errs []error
	if d.tracer != nil {
		errs = append(errs, d.tracer.Release(ctx))
	}
	for _, t := range d.targets {
		if t.tracer != nil {
			errs = append(errs, t.tracer.Release(ctx))
		}
		errs = append(errs, t.prefault.end(ctx))
		if t.lane != nil && t.lane.lent != nil {
			errs = append(errs, t.lane.lent.Return(ctx))
		}
	}
	d.stopCopies(ctx)
	return errors.Join(errs...)
}

// letGo lets go of what the run holds. The processes do not notice.
func (d *dump) letGo() {
	_ = d.releaseTracers(context.Background())
	for _, t := range d.targets {
		if t.lane != nil {
			t.lane.output.Close()
		}
	}
	closeTargets(d.targets)
	for _, other := range d.others {
		other.Close()
	}
	if d.claimed != nil {
		d.claimed.Close() // criu and the watcher have it on
	}
	if d.session != nil {
		d.session.Unlock()
	}
}
