package hooks

import (
	"context"

	"cucriu/hooks/preflight"
	"cucriu/internal/proc"
)

// releaseDevices takes from the CUDA processes the devices that they hold although they are
// checkpointed, if they do not use them: the driver gives up what belongs to CUDA, and only that.
// Otherwise the dump fails here, with the reason, before criu fails without it.
func (d *dump) releaseDevices(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.Config.Lock.Timeout)
	defer cancel()
	return parallel(d.targets, func(t *target) error {
		holder, err := preflight.LeftoverOf(&t.member.Process)
		if err != nil || holder == nil {
			return err
		}
		verdict := holder.JudgeLeftover(ctx, d.driver, d.listed)
		if verdict.Severity == preflight.SeverityError {
			if err := d.refuse(preflight.Findings{verdict}); err != nil {
				return &leftoverError{verdict}
			}
			return nil // overridden: criu decides
		}
		if err := d.disconnect(ctx, t.Process, holder); err != nil {
			return err
		}
		// As after the drop: every thread must be back in the group-stop.
		return proc.KeepStopped(ctx, t.Process)
	})
}

// leftoverError says that a process cannot be dumped for what it holds. It is no refusal: the
// process has been checkpointed by then.
type leftoverError struct{ finding preflight.Finding }

func (e *leftoverError) Error() string { return e.finding.String() }
