package hooks

import (
	"context"

	"cucriu/internal/proc"
)

// leaveLocked leaves the memory of processes that lock theirs (mlockall) to criu where the
// kernel cannot drop locked memory: before 5.18. This must be known before the journal says
// that memory is dropped, and before the first range is dropped.
func (d *dump) leaveLocked(ctx context.Context) error {
	// The failpoint makes this kernel count as an old one.
	if err := d.session.failpoint(ctx, "dump.drop-locked"); err == nil && proc.CanDropLocked() {
		return nil
	}
	for _, t := range d.inLane() {
		status, err := proc.ReadStatus(t.PID)
		if err != nil {
			return err
		}
		if status.Locked == 0 {
			continue
		}
		d.Log.Warn("the process locks its memory, and this kernel (before 5.18) cannot drop that: criu writes its GPU state", "pid", t.PID)
		if err := d.leaveToCriu(t); err != nil {
			return err
		}
	}
	return nil
}
